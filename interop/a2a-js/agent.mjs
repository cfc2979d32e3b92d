// An A2A agent built with @a2a-js/sdk, for the product to talk to in tests.
//
// It serves the same agent several times, once a binding and version of the protocol, each under a path of its own with a
// card of its own. What it does depends on the first word of a message:
//
//   greet NAME          answers with a message
//   write KEY           works on a task: an artifact in two pieces, then completed
//   write-slowly KEY    the same, but holds between the pieces until it is told "release KEY", or the task is cancelled
//   show KEY            a task with an artifact of every kind of part
//   ask-back KEY        a task that wants an input, and takes the next message as it
//   refuse KEY          a task that fails
//
// On standard output it prints a JSON object a line: first where the cards are, then everything that reaches it. It reads
// commands from standard input and ends with it.
import { createInterface } from 'node:readline';
import { createServer } from 'node:http';
import express from 'express';
import grpc from '@grpc/grpc-js';
import {
  AgentCard,
  Message,
  Task,
  TaskArtifactUpdateEvent,
  TaskState,
  TaskStatusUpdateEvent,
} from '@a2a-js/sdk';
import { AgentEvent, DefaultRequestHandler, InMemoryTaskStore } from '@a2a-js/sdk/server';
import { UserBuilder, agentCardHandler, jsonRpcHandler, restHandler } from '@a2a-js/sdk/server/express';
import { A2AService, grpcService } from '@a2a-js/sdk/server/grpc';

const say = (line) => process.stdout.write(JSON.stringify(line) + '\n');

// Gates hold work until they are opened by key, or given up on by task.
class Gates {
  #open = new Set();
  #held = new Map(); // task id → { key, settle }

  // wait resolves to true when the key is released and to false when the task is cancelled.
  wait(key, taskId) {
    if (this.#open.has(key)) return Promise.resolve(true);
    return new Promise((settle) => this.#held.set(taskId, { key, settle }));
  }

  release(key) {
    this.#open.add(key);
    for (const [taskId, held] of this.#held) if (held.key === key) this.#settle(taskId, true);
  }

  // cancel reports whether the task was held.
  cancel(taskId) {
    return this.#settle(taskId, false);
  }

  #settle(taskId, goOn) {
    const held = this.#held.get(taskId);
    this.#held.delete(taskId);
    held?.settle(goOn);
    return held !== undefined;
  }
}

// Agent is the agent behind one card.
class Agent {
  #way;
  #gates;

  constructor(way, gates) {
    this.#way = way;
    this.#gates = gates;
  }

  async execute(request, bus) {
    const { taskId, contextId, userMessage } = request;
    const text = userMessage.parts.map((p) => (p.content?.$case === 'text' ? p.content.value : '')).join('');
    const [verb, key = ''] = text.trim().split(/\s+/);
    say({ execute: text, way: this.#way, messageId: userMessage.messageId, taskId });

    const said = (text) => ({ messageId: crypto.randomUUID(), role: 'ROLE_AGENT', taskId, contextId, parts: [{ text }] });
    const status = (state, text) => ({ state, timestamp: new Date().toISOString(), ...(text && { message: said(text) }) });
    const begin = (state) =>
      bus.publish(AgentEvent.task(Task.fromJSON({ id: taskId, contextId, status: status(state), history: [Message.toJSON(userMessage)] })));
    const move = (state, text) =>
      bus.publish(AgentEvent.statusUpdate(TaskStatusUpdateEvent.fromJSON({ taskId, contextId, status: status(state, text) })));
    const piece = (artifact, append, lastChunk) =>
      bus.publish(AgentEvent.artifactUpdate(TaskArtifactUpdateEvent.fromJSON({ taskId, contextId, artifact, append, lastChunk })));

    if (request.task?.status?.state === TaskState.TASK_STATE_INPUT_REQUIRED) {
      bus.publish(AgentEvent.task(request.task));
      move('TASK_STATE_COMPLETED', `You chose ${text}.`);
      return;
    }
    switch (verb) {
      case 'greet':
        bus.publish(AgentEvent.message(Message.fromJSON({ ...said(`Hello ${key}.`), taskId: '' })));
        return;
      case 'write':
      case 'write-slowly':
        begin('TASK_STATE_SUBMITTED');
        move('TASK_STATE_WORKING', `I write about ${key}.`);
        piece({ artifactId: 'letter', name: 'letter', parts: [{ text: `The first half of ${key}. ` }] }, false, false);
        if (verb === 'write-slowly' && !(await this.#gates.wait(key, taskId))) {
          move('TASK_STATE_CANCELED', 'I stop.');
          return;
        }
        piece({ artifactId: 'letter', parts: [{ text: `The second half of ${key}.` }] }, true, true);
        move('TASK_STATE_COMPLETED');
        return;
      case 'show':
        begin('TASK_STATE_WORKING');
        piece(
          {
            artifactId: 'all',
            name: 'all',
            parts: [
              { text: `A text of ${key}.` },
              { data: { key, ferries: 3 } },
              { raw: Buffer.from(`The bytes of ${key}.`).toString('base64'), filename: 'note.txt', mediaType: 'text/plain' },
              { url: `https://files.example.com/${key}.pdf`, filename: `${key}.pdf`, mediaType: 'application/pdf' },
            ],
          },
          false,
          true,
        );
        move('TASK_STATE_COMPLETED');
        return;
      case 'ask-back':
        begin('TASK_STATE_WORKING');
        move('TASK_STATE_INPUT_REQUIRED', `Which ${key}?`);
        return;
      case 'refuse':
        begin('TASK_STATE_WORKING');
        move('TASK_STATE_FAILED', `No ${key} today.`);
        return;
      default:
        bus.publish(AgentEvent.message(Message.fromJSON({ ...said(`I don't know how to ${verb}.`), taskId: '' })));
    }
  }

  async cancelTask(taskId, bus) {
    const held = this.#gates.cancel(taskId);
    say({ cancel: taskId, way: this.#way, held });
    if (!held) {
      bus.publish(
        AgentEvent.statusUpdate(
          TaskStatusUpdateEvent.fromJSON({ taskId, contextId: '', status: { state: 'TASK_STATE_CANCELED', timestamp: new Date().toISOString() } }),
        ),
      );
    }
  }
}

// The ways to the agent: a path, with the interfaces its card offers.
const ways = [
  { way: 'jsonrpc', offers: [['JSONRPC', '1.0']], streaming: true },
  { way: 'jsonrpc-without-streaming', offers: [['JSONRPC', '1.0']], streaming: false },
  { way: 'rest', offers: [['HTTP+JSON', '1.0']], streaming: true },
  { way: 'grpc', offers: [['GRPC', '1.0']], streaming: true },
  { way: 'jsonrpc-0.3', offers: [['JSONRPC', '0.3']], streaming: true },
  { way: 'rest-0.3', offers: [['HTTP+JSON', '0.3']], streaming: true },
  { way: 'both-versions', offers: [['JSONRPC', '1.0'], ['JSONRPC', '0.3']], streaming: true },
];

const gates = new Gates();
const app = express();
const http = createServer(app);
await new Promise((listening) => http.listen(0, '127.0.0.1', listening));
const base = `http://127.0.0.1:${http.address().port}`;
const grpcServer = new grpc.Server();
const grpcPort = await new Promise((bound, failed) =>
  grpcServer.bindAsync('127.0.0.1:0', grpc.ServerCredentials.createInsecure(), (err, port) => (err ? failed(err) : bound(port))),
);

// What comes in over HTTP is printed before it is looked at.
app.use(express.json({ type: ['application/json', 'application/a2a+json'] }), (req, _res, next) => {
  say({ http: `${req.method} ${req.path}`, version: req.get('A2A-Version') ?? '', method: req.body?.method ?? '' });
  next();
});

const cards = {};
for (const { way, offers, streaming } of ways) {
  const url = `${base}/${way}`;
  cards[way] = url;
  const card = AgentCard.fromJSON({
    name: 'writer',
    description: 'Writes letters.',
    version: '1.0.0',
    supportedInterfaces: offers.map(([protocolBinding, protocolVersion]) => ({
      url: protocolBinding === 'GRPC' ? `http://127.0.0.1:${grpcPort}` : url,
      protocolBinding,
      protocolVersion,
    })),
    capabilities: { streaming },
    defaultInputModes: ['text/plain'],
    defaultOutputModes: ['text/plain'],
    skills: [{ id: 'write', name: 'Write', description: 'Writes a letter.', tags: ['letters'] }],
  });
  const requestHandler = new DefaultRequestHandler(card, new InMemoryTaskStore(), new Agent(way, gates));
  const legacyCompat = { enabled: offers.some(([, version]) => version === '0.3') };
  const userBuilder = UserBuilder.noAuthentication;
  app.use(`/${way}/.well-known/agent-card.json`, agentCardHandler({ agentCardProvider: requestHandler, legacyCompat }));
  switch (offers[0][0]) {
    case 'JSONRPC':
      app.use(`/${way}`, jsonRpcHandler({ requestHandler, userBuilder, legacyCompat }));
      break;
    case 'HTTP+JSON':
      app.use(`/${way}`, restHandler({ requestHandler, userBuilder, legacyCompat }));
      break;
    default:
      grpcServer.addService(A2AService, grpcService({ requestHandler, userBuilder }));
  }
}

createInterface({ input: process.stdin })
  .on('line', (line) => {
    const [command, key] = line.split(' ');
    if (command === 'release') gates.release(key);
  })
  .on('close', () => process.exit(0));

say({ ready: cards });

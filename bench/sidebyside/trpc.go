package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"trpc.group/trpc-go/trpc-agent-go/agent"
	"trpc.group/trpc-go/trpc-agent-go/agent/a2aagent"
	"trpc.group/trpc-go/trpc-agent-go/agent/llmagent"
	"trpc.group/trpc-go/trpc-agent-go/event"
	"trpc.group/trpc-go/trpc-agent-go/log"
	"trpc.group/trpc-go/trpc-agent-go/model"
	"trpc.group/trpc-go/trpc-agent-go/runner"
	"trpc.group/trpc-go/trpc-agent-go/session"
	"trpc.group/trpc-go/trpc-agent-go/session/inmemory"
	"trpc.group/trpc-go/trpc-agent-go/tool"
	agenttool "trpc.group/trpc-go/trpc-agent-go/tool/agent"
)

// trpc calls a peer through the A2A agent of trpc-agent-go. A call is one by that agent, in a runner with sessions in
// memory or alone, without a model, and the first message of a session that was made before. A step is one by an agent
// with a model, in such a runner, that has the A2A agent for a tool.
type trpc struct {
	setup
	agent    *a2aagent.A2AAgent
	sessions *inmemory.SessionService
	runner   runner.Runner // nil: the agent alone, which keeps nothing
	asking   runner.Runner // of the agent with a model, or nil
	model    *trpcWisher
	made     int
}

func newTrpc(s setup, url string, inRunner bool) (*trpc, error) {
	log.SetLevel(log.LevelError)
	remote, err := a2aagent.New(a2aagent.WithName(peerName), a2aagent.WithAgentCardURL(url), a2aagent.WithEnableStreaming(s.streaming))
	if err != nil {
		return nil, err
	}
	t := &trpc{setup: s, agent: remote, sessions: inmemory.NewSessionService(), model: new(trpcWisher)}
	if inRunner {
		t.runner = runner.NewRunner("bench", remote, runner.WithSessionService(t.sessions))
		asking := llmagent.New("asking", llmagent.WithModel(t.model), llmagent.WithTools([]tool.Tool{agenttool.NewTool(remote)}))
		t.asking = runner.NewRunner("bench", asking, runner.WithSessionService(t.sessions))
	}
	return t, nil
}

func (t *trpc) close() error {
	if t.runner != nil {
		return errors.Join(t.runner.Close(), t.asking.Close(), t.sessions.Close())
	}
	return t.sessions.Close()
}

// block implements contender.
func (t *trpc) block(ctx context.Context, n int, allocs bool) (s sample, err error) {
	made := make([]*session.Session, n+1)
	for i := range made {
		t.made++
		key := session.Key{AppName: "bench", UserID: user, SessionID: fmt.Sprintf("s-%d", t.made)}
		if made[i], err = t.sessions.CreateSession(ctx, key, nil); err != nil {
			return s, err
		}
		defer func() { err = errors.Join(err, t.sessions.DeleteSession(ctx, key)) }()
	}
	if s, err = timed(n, allocs, func(i int) error {
		said, err := t.say(ctx, t.runner, made[i])
		if err != nil {
			return err
		}
		return answered(said)
	}); err != nil || t.asking == nil {
		return s, err
	}
	t.model.steps = steps{left: n}
	if _, err := t.say(ctx, t.asking, made[n]); err != nil {
		return s, err
	}
	s.step, err = t.model.took(n)
	return s, err
}

// say sends the question to a session and returns what is answered. Without a runner the agent is run alone.
func (t *trpc) say(ctx context.Context, r runner.Runner, s *session.Session) (said string, err error) {
	var events <-chan *event.Event
	if asked := model.NewUserMessage(question); r != nil {
		events, err = r.Run(ctx, user, s.ID, asked)
	} else {
		events, err = t.agent.Run(ctx, agent.NewInvocation(
			agent.WithInvocationAgent(t.agent), agent.WithInvocationSession(s), agent.WithInvocationMessage(asked)))
	}
	if err != nil {
		return "", err
	}
	for ev := range events { // to the end, which is an error's too
		switch {
		case ev.Error != nil:
			err = errors.New(ev.Error.Message)
		case ev.Response != nil:
			for _, c := range ev.Response.Choices {
				said += c.Message.Content
			}
		}
	}
	return said, err
}

// trpcWisher is a model that wishes to call the peer so often and then ends its turn.
type trpcWisher struct{ steps }

var _ model.IterModel = (*trpcWisher)(nil)

// Info implements [model.Model].
func (w *trpcWisher) Info() model.Info { return model.Info{Name: "bench"} }

// GenerateContent implements [model.Model].
func (w *trpcWisher) GenerateContent(context.Context, *model.Request) (<-chan *model.Response, error) {
	return nil, errors.New("the model is asked for an iterator")
}

// GenerateContentIter implements [model.IterModel], which costs them less than a channel.
func (w *trpcWisher) GenerateContentIter(_ context.Context, req *model.Request) (model.Seq[*model.Response], error) {
	told := strings.Contains(req.Messages[len(req.Messages)-1].Content, answer)
	m := model.NewAssistantMessage("done")
	if w.next(told) {
		arguments, err := json.Marshal(map[string]string{"request": question})
		if err != nil {
			return nil, err
		}
		m = model.Message{Role: model.RoleAssistant, ToolCalls: []model.ToolCall{{
			Type: "function", ID: fmt.Sprintf("call_%d", w.left), Function: model.FunctionDefinitionParam{Name: peerName, Arguments: arguments},
		}}}
	}
	return func(yield func(*model.Response) bool) {
		yield(&model.Response{ID: "r", Object: model.ObjectTypeChatCompletion, Model: "bench", Choices: []model.Choice{{Message: m}}, Done: true})
	}, nil
}

// A client of the session API in another language, with nothing but fetch. It sends one input, follows the session's events
// over connections that it cuts at random, wherever they are, and over servers that go and come, until the turn is
// quiescent; then it prints every durable event it has seen, in its order.
//
//   node client.mjs URL INPUT SEED CUTS
//
// It prints a line for each cut: {"cut": n}; one at the end: {"turn", "output", "streams", "ends", "ephemeral", "cutWhileTalking"}; and
// one for each event: [seq, id, type, agentId, turnId]. It exits with 1 and says why when an event is missing, comes twice or
// out of order.

const [url, input, seedText, cutsText] = process.argv.slice(2)
const cuts = Number(cutsText)

// A random number in [0, 1), the same ones for the same seed.
let state = Number(seedText) >>> 0
function random() {
  state = (state + 0x6d2b79f5) >>> 0
  let t = state
  t = Math.imul(t ^ (t >>> 15), t | 1)
  t ^= t + Math.imul(t ^ (t >>> 7), t | 61)
  return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32
}
const upTo = n => Math.floor(random() * n)
const sleep = ms => new Promise(done => setTimeout(done, ms))
const print = value => process.stdout.write(JSON.stringify(value) + '\n')

function fail(message) {
  process.stderr.write(message + '\n')
  process.exit(1)
}

// call makes a request until a server answers it: while one starts, nobody or only half of one does.
async function call(method, path, { body, headers } = {}) {
  for (;;) {
    try {
      const answer = await fetch(url + path, {
        method,
        headers: { accept: 'application/json', ...(body && { 'content-type': 'application/json' }), ...headers },
        body: body && JSON.stringify(body),
      })
      const value = await answer.json()
      if (answer.ok) return value
      if (answer.status < 500 && answer.status !== 429) fail(`${method} ${path}: ${answer.status} ${JSON.stringify(value)}`)
    } catch (err) {
      if (err instanceof SyntaxError) fail(`${method} ${path}: ${err}`)
    }
    await sleep(50)
  }
}

const seen = [] // durable events, in the order they came
let lastId = '' // the position: the id of the last frame that was read whole
let streams = 0
let ephemeral = 0
let cut = 0
const talking = new Set() // subagents that have started and not ended
let cutWhileTalking = 0
const ends = {} // reasons of stream.end
let root
let over = false // no more cuts: read to the end
let target = Infinity // the seq to read to

function take(frame) {
  let type = 'message'
  let id
  const data = []
  for (const line of frame.split('\n')) {
    const [, name, value] = /^([^:]*):? ?(.*)$/.exec(line)
    if (name === 'event') type = value
    else if (name === 'data') data.push(value)
    else if (name === 'id') id = value
  }
  if (data.length === 0) return // a comment, or retry
  const event = JSON.parse(data.join('\n'))
  if (type === 'stream.open') {
    root ??= event.rootAgentId
    if (event.rootAgentId !== root) fail(`stream.open names ${event.rootAgentId} as the root, not ${root}`)
    if (String(event.after) !== (lastId || '0')) fail(`the stream begins behind ${event.after}, not ${lastId}`)
    return
  }
  if (type === 'stream.end') {
    ends[event.reason] = (ends[event.reason] ?? 0) + 1
    return
  }
  if (type.startsWith('stream.')) fail(`unexpected ${type}: ${data}`)
  if (event.type !== type) fail(`event ${event.id} is told as ${type} and is ${event.type}`)
  if (id === undefined) {
    if (event.seq || !event.ephemeral) fail(`event ${event.id} (${type}) has no id and is not ephemeral`)
    ephemeral++
    return
  }
  if (id !== String(event.seq)) fail(`event ${event.id} has seq ${event.seq} and id ${id}`)
  const want = seen.length + 1
  if (event.seq !== want) fail(`event ${event.seq} comes where ${want} belongs, on stream ${streams}`)
  seen.push([event.seq, event.id, event.type, event.agentId, event.turnId ?? ''])
  lastId = id
  if (type === 'subagent.started') talking.add(event.agentId)
  if (type === 'subagent.completed' || type === 'subagent.failed') talking.delete(event.agentId)
}

// follow reads one stream until it ends, or until a random place at which it is cut. It throws away what it has of a frame
// that isn't whole, as any client must.
async function follow(session) {
  const controller = new AbortController()
  let atBytes = Infinity
  let timer
  if (!over && (talking.size > 0 || cut > 0 || random() < 0.05)) { // before they talk, cuts are rare
    const how = upTo(10)
    if (how === 0) timer = setTimeout(() => controller.abort(), upTo(5)) // most likely before there is an answer
    else timer = setTimeout(() => controller.abort(), 10 + upTo(60)) // at the latest
    if (how > 1) atBytes = 1 + upTo(6000) // anywhere, most often inside a frame
  }
  streams++
  const byHeader = random() < 0.5 // both ways to say where to go on
  let bytes = 0
  try {
    const answer = await fetch(`${url}/v1/sessions/${session}/events?ephemeral=true` + (byHeader || !lastId ? '' : `&after=${lastId}`), {
      headers: { accept: 'text/event-stream', ...(byHeader && lastId && { 'last-event-id': lastId }) },
      signal: controller.signal,
    })
    if (!answer.ok) {
      if (answer.status < 500 && answer.status !== 429) fail(`events: ${answer.status} ${await answer.text()}`)
      return
    }
    const decoder = new TextDecoder()
    let text = ''
    for await (const chunk of answer.body) {
      const part = chunk.subarray(0, Math.max(atBytes - bytes, 0))
      bytes += chunk.length
      text += decoder.decode(part, { stream: true })
      for (let end; (end = text.indexOf('\n\n')) >= 0; text = text.slice(end + 2)) take(text.slice(0, end))
      if (bytes >= atBytes) controller.abort()
      if (over && seen.length >= target) return
      if (!over && !timer && talking.size > 0) controller.abort() // they have begun
    }
  } catch (err) {
    if (err instanceof SyntaxError) fail(`a frame is not JSON: ${err}`)
    if (!controller.signal.aborted) await sleep(20) // the server is away
  } finally {
    clearTimeout(timer)
    if (controller.signal.aborted) {
      cut++
      if (talking.size > 0) cutWhileTalking++
      print({ cut })
      if (cut >= cuts) over = true
    } else controller.abort()
  }
}

const session = (await call('POST', '/v1/sessions', { body: { title: 'a client with nothing but fetch' } })).id
const key = { headers: { 'idempotency-key': `turn-${seedText}` }, body: { input } }
const turn = (await call('POST', `/v1/sessions/${session}/turns`, key)).id
const again = (await call('POST', `/v1/sessions/${session}/turns`, key)).id
if (again !== turn) fail(`the same key is turn ${turn} and turn ${again}`)
print({ session })

const following = (async () => {
  while (!(over && seen.length >= target)) await follow(session)
})()
let result
do {
  result = await call('GET', `/v1/sessions/${session}/turns/${turn}?wait=5s&until=quiescent`)
} while (!result.quiescent)
let snapshot
do {
  snapshot = await call('GET', `/v1/sessions/${session}`)
  await sleep(100) // the level that says so comes behind what made it so
} while (snapshot.state !== 'idle' || snapshot.lastSeq !== (await call('GET', `/v1/sessions/${session}`)).lastSeq)
target = snapshot.lastSeq
if (!over) fail(`the turn is quiescent after ${cut} cuts of ${cuts}`)
// The stream that is open may have brought all there is.
const last = setInterval(() => seen.length >= target && process.nextTick(finish), 20)
async function finish() {
  clearInterval(last)
  if (seen.length !== target) fail(`${seen.length} events were seen, and there are ${target}`)
  print({ turn, output: result.output, streams, ends, ephemeral, cutWhileTalking })
  for (const event of seen) print(event)
  process.exitCode = 0
  process.stdout.write('', () => process.exit())
}
await following

// What applications do with the official Node SDK. Run in the client's own directory:
// node openai_node.mjs http|websocket|lanes BASE_URL MODEL tool|no-tool. Fails by an exception.
import assert from 'node:assert/strict';
import fs from 'node:fs';
import OpenAI from 'openai';
import { ResponsesWebSocketSession } from 'openai/lib/responses/responses-websocket-session';
import { ResponsesWS } from 'openai/resources/responses/ws';

const [transport, baseURL, modelName, toolWord] = process.argv.slice(2);
const needsTool = toolWord === 'tool';
// A small model may go on and on: then its answers are cut, and that is no failure.
const asked = needsTool ? { model: modelName } : { model: modelName, max_output_tokens: 48 };
const isWhole = (response) =>
  response.status === 'completed' || (response.status === 'incomplete' && !needsTool);
const client = new OpenAI({ baseURL, apiKey: 'sk-local-test', maxRetries: 0, timeout: needsTool ? 60_000 : 300_000 });
const NOBODY = 'resp_0000000000000000000000000000000000000000000000ff';
const QUESTION = 'How is the weather in Paris? Use get_weather, then answer.';
const WEATHER = {
  type: 'function',
  name: 'get_weather',
  description: 'Get the weather of a city.',
  strict: true,
  parameters: {
    type: 'object',
    properties: { city: { type: 'string' } },
    required: ['city'],
    additionalProperties: false,
  },
};

const calls = (response) => response.output.filter((item) => item.type === 'function_call' && item.status === 'completed');
const outputs = (response) =>
  calls(response).map(({ call_id }) => ({ type: 'function_call_output', call_id, output: 'sunny' }));
const textOf = (response) =>
  response.output
    .flatMap((item) => (item.type === 'message' ? item.content : []))
    .map((part) => part.text ?? '')
    .join('');

async function readOne(events) {
  let text = '';
  let last = -1;
  let count = 0;
  for await (const event of events) {
    assert.notEqual(event.type, 'error', JSON.stringify(event));
    assert.ok(event.sequence_number > last, `${event.sequence_number} after ${last}`);
    last = event.sequence_number;
    if (count++ === 0) assert.equal(event.type, 'response.created');
    if (event.type === 'response.output_text.delta') text += event.delta;
    if (/^response\.(completed|failed|incomplete)$/.test(event.type)) {
      assert.ok(isWhole(event.response), event.type);
      assert.equal(textOf(event.response), text);
      return event.response;
    }
  }
  throw new Error('the stream ended before its response');
}

// A socket's own stream ends with the first turn when it is left; this one goes on.
class Socket {
  constructor() {
    this.ws = new ResponsesWS(client);
    this.waiting = [];
    this.arrived = [];
    const put = (event) => {
      const wake = this.waiting.shift();
      if (wake) wake(event);
      else this.arrived.push(event);
    };
    this.ws.on('event', put);
    this.ws.on('error', (error) => put({ type: 'error', error }));
  }
  next() {
    if (this.arrived.length) return Promise.resolve(this.arrived.shift());
    return new Promise((resolve) => this.waiting.push(resolve));
  }
  async *events() {
    for (;;) yield await this.next();
  }
  turn(options) {
    this.ws.send({ type: 'response.create', ...asked, store: false, ...options });
    return readOne(this.events());
  }
}

const scenarios = {
  http: {
    async answersAndStreams() {
      const made = await client.responses.create({ ...asked, input: 'Say hello.' });
      assert.ok(isWhole(made), made.status);
      const stream = await client.responses.create({ ...asked, input: 'Say hello.', stream: true });
      return textOf(await readOne(stream)) && made.output_text;
    },
    async runsATool() {
      let input = QUESTION;
      let previous_response_id;
      for (let round = 0; round < 6; round++) {
        const stream = client.responses.stream({ ...asked, input, tools: [WEATHER], previous_response_id });
        const response = await stream.finalResponse();
        if (!calls(response).length) {
          assert.ok(round > 0 || !needsTool, 'no tool was called');
          return textOf(response);
        }
        previous_response_id = response.id;
        input = outputs(response);
      }
      throw new Error('the tools never ended');
    },
    async refusesAnUnknownParent() {
      const refused = client.responses.create({ ...asked, input: 'x', previous_response_id: NOBODY });
      await assert.rejects(refused, (error) => {
        assert.equal(error.code, 'previous_response_not_found');
        return error.status === 400;
      });
      return 'refused';
    },
  },
  websocket: {
    async oneSocketForAToolLoop() {
      const socket = new Socket();
      try {
        const warm = await socket.turn({ generate: false, input: [], tools: [WEATHER] });
        assert.deepEqual(warm.output ?? [], []);
        let response = await socket.turn({
          input: QUESTION,
          tools: [WEATHER],
          previous_response_id: warm.id,
        });
        let round = 0;
        while (calls(response).length && round++ < 6) {
          response = await socket.turn({
            input: outputs(response),
            tools: [WEATHER],
            previous_response_id: response.id,
          });
        }
        assert.ok(round > 0 || !needsTool, 'no tool was called');
        return textOf(response);
      } finally {
        socket.ws.close();
      }
    },
    async goesOnAfterAnError() {
      const socket = new Socket();
      try {
        socket.ws.send({ type: 'response.create', ...asked, input: 'x', previous_response_id: NOBODY });
        const refused = await socket.next();
        assert.equal(refused.type, 'error');
        const said = JSON.stringify([refused, refused.error?.message, refused.error?.error]);
        assert.match(said, /previous_response_not_found/);
        socket.arrived.length = 0;
        return textOf(await socket.turn({ input: 'Still there?' }));
      } finally {
        socket.ws.close();
      }
    },
  },
  lanes: {
    async lanesOfTheSdkFork() {
      const ws = new ResponsesWS(client);
      ws.on('error', () => {});
      for await (const event of ws.stream()) {
        assert.ok(event.type === 'connecting' || event.type === 'open', event.type);
        if (event.type === 'open') break;
      }
      const session = new ResponsesWebSocketSession(ws, {
        maxLanes: 8,
        maxBufferedEvents: 20_000,
        maxBufferedBytes: 2 ** 26,
      });
      const create = (options) => ({ ...asked, store: false, ...options });
      try {
        const trunk = session.lane('trunk');
        const branch = session.lane('branch');
        trunk.create(create({ input: 'Begin.' }));
        branch.create(create({ input: 'Begin here too.' }));
        const [first, other] = await Promise.all([trunk.finalResponse(), branch.finalResponse()]);
        assert.notEqual(first.id, other.id);
        branch.create(create({ input: 'This way.', previous_response_id: first.id }));
        const forked = await branch.finalResponse();
        assert.equal(forked.previous_response_id, first.id);
        branch.create(create({ input: 'x', previous_response_id: NOBODY }));
        await assert.rejects(branch.finalResponse(), (error) => {
          const said = JSON.stringify([error.error, error.event]) + error.message;
          return said.includes('previous_response_not_found');
        });
        const unnamed = session.lane();
        unnamed.create(create({ input: 'Without a lane.' }));
        return (await unnamed.finalResponse()).output_text;
      } finally {
        session.close();
        ws.close();
      }
    },
  },
};

const version = JSON.parse(fs.readFileSync('node_modules/openai/package.json')).version;
console.log('openai', version, transport, process.version);
const timer = setTimeout(() => {
  console.error('timeout');
  process.exit(1);
}, needsTool ? 90_000 : 600_000);
for (const [name, scenario] of Object.entries(scenarios[transport])) {
  const text = await scenario();
  assert.ok(text, name);
  console.log(`ok ${name}: ${text.slice(0, 80)}`);
}
clearTimeout(timer);
process.exit(0);

// What applications do with @openai/agents. Run in the client's own directory:
// node openai_agents_js.mjs http|websocket BASE_URL MODEL [no-tool]. Fails by an exception.
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { Agent, OpenAIProvider, Runner, setTracingDisabled, tool } from '@openai/agents';
import OpenAI from 'openai';
import { z } from 'zod';

const [transport, baseURL, model, tools] = process.argv.slice(2);
const mustCall = tools !== 'no-tool';
setTracingDisabled(true);

let asked = 0;
const weather = tool({
  name: 'get_weather',
  description: 'Get the weather of a city.',
  parameters: z.object({ city: z.string() }),
  execute: async () => {
    asked += 1;
    return 'sunny, 21 degrees';
  },
});
const provider = new OpenAIProvider({
  openAIClient: new OpenAI({ baseURL, apiKey: 'sk-local-test', maxRetries: 0 }),
  useResponses: true,
  useResponsesWebSocket: transport === 'websocket',
});
const runner = new Runner({ modelProvider: provider, tracingDisabled: true });
const agent = new Agent({
  name: 'Helper',
  instructions: 'Use the tools, then answer.',
  tools: [weather],
  model,
});

const version = JSON.parse(fs.readFileSync('node_modules/@openai/agents/package.json')).version;
console.log('@openai/agents', version, transport, process.version);
const timer = setTimeout(() => {
  console.error('timeout');
  process.exit(1);
}, mustCall ? 90_000 : 900_000);

const first = await runner.run(agent, 'How is the weather in Paris?', { maxTurns: 8 });
assert.ok(first.finalOutput);
assert.ok(asked > 0 || !mustCall, 'no tool was called');
console.log('ok run:', first.finalOutput.slice(0, 80));

const follow = await runner.run(agent, 'And tomorrow?', {
  stream: true,
  previousResponseId: first.lastResponseId,
  maxTurns: 8,
});
let events = 0;
for await (const event of follow) if (event) events += 1;
await follow.completed;
assert.ok(follow.finalOutput && events);
console.log('ok streamed run with a parent:', events, 'events');

const history = [...first.history, { role: 'user', content: 'Once more, please.' }];
const resent = await runner.run(agent, history, { maxTurns: 8 });
assert.ok(resent.finalOutput);
console.log('ok run with the whole history');

await provider.close?.();
clearTimeout(timer);
process.exit(0);

// What applications do with the AI SDK and the Responses API. Run in the client's own directory:
// node ai_sdk.mjs http BASE_URL MODEL. Fails by an exception.
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { createOpenAI } from '@ai-sdk/openai';
import { generateObject, generateText, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

const [transport, baseURL, name] = process.argv.slice(2);
const openai = createOpenAI({ baseURL, apiKey: 'sk-local-test' });
const model = openai.responses(name);
const timer = setTimeout(() => {
  console.error('timeout');
  process.exit(1);
}, 90_000);
const version = JSON.parse(fs.readFileSync('node_modules/@ai-sdk/openai/package.json')).version;
console.log('@ai-sdk/openai', version, transport, process.version);

const options = { model, maxRetries: 0 };
const first = await generateText({ ...options, prompt: 'Say hello.' });
assert.ok(first.text && first.finishReason === 'stop' && first.usage.inputTokens > 0);
console.log('ok text:', first.text.slice(0, 60));

let asked = 0;
const tools = {
  get_weather: tool({
    description: 'Get the weather of a city.',
    inputSchema: z.object({ city: z.string() }),
    execute: async () => {
      asked += 1;
      return 'sunny';
    },
  }),
};
const stream = streamText({
  ...options,
  tools,
  prompt: 'How is the weather in Paris?',
  stopWhen: stepCountIs(4),
});
let said = '';
for await (const part of stream.fullStream) {
  assert.notEqual(part.type, 'error', JSON.stringify(part.error));
  if (part.type === 'text-delta') said += part.text;
}
assert.ok(said && asked === 1, 'no tool was called');
console.log('ok streamed steps with a tool:', said.slice(0, 60));

const parent = first.providerMetadata.openai.responseId;
const follow = await generateText({
  ...options,
  prompt: 'And now?',
  providerOptions: { openai: { previousResponseId: parent } },
});
assert.ok(follow.text);
console.log('ok parent');

const pixel =
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==';
const content = [
  { type: 'text', text: 'What is this?' },
  { type: 'image', image: pixel, mediaType: 'image/png' },
];
const seen = await generateText({ ...options, messages: [{ role: 'user', content }] });
assert.ok(seen.text);
console.log('ok image');

const { object } = await generateObject({
  ...options,
  prompt: 'Paris?',
  schema: z.object({ city: z.string(), degrees: z.number() }),
});
assert.equal(typeof object.degrees, 'number');
console.log('ok object:', JSON.stringify(object));
clearTimeout(timer);

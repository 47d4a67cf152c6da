// An agent loop over one gRPC stream, with the generated stubs (made by scripts/typescript).
//
//     node agent_loop.mjs [http://127.0.0.1:50051] [model]
//
// The model calls the local tool `word_count`, gets its result, and answers; the answer is
// printed as it arrives. Each turn sends only what is new. Exit code 0 after a whole answer.

import { create } from "@bufbuild/protobuf";
import { createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";

import { ClientEventSchema } from "./gen/turnwire/v1/client_event_pb.js";
import { SessionService } from "./gen/turnwire/v1/session_pb.js";

const TARGET = process.argv[2] ?? process.env.TURNWIRE_TARGET ?? "http://127.0.0.1:50051";
const MODEL = process.argv[3] ?? process.env.TURNWIRE_MODEL ?? "sim";
const MOST_TURNS = 8;

const TOOL = {
  tool: {
    case: "function",
    value: {
      name: "word_count",
      description: "Counts the words of a text.",
      parameters: JSON.stringify({
        type: "object",
        properties: { text: { type: "string" } },
        required: ["text"],
        additionalProperties: false,
      }),
      strict: true,
    },
  },
};

/** Runs the tool: JSON text in, JSON text out. */
function wordCount(argumentsJson) {
  const { text } = JSON.parse(argumentsJson);
  return JSON.stringify({ words: text.split(/\s+/).filter(Boolean).length });
}

/** The request side of the stream: what is pushed is sent, `end` half-closes. */
class Outgoing {
  #waiting = [];
  #wake = () => {};
  #ended = false;

  send(event) {
    this.#waiting.push(create(ClientEventSchema, { event }));
    this.#wake();
  }

  end() {
    this.#ended = true;
    this.#wake();
  }

  async *[Symbol.asyncIterator]() {
    for (;;) {
      while (this.#waiting.length > 0) yield this.#waiting.shift();
      if (this.#ended) return;
      await new Promise((resolve) => (this.#wake = resolve));
    }
  }
}

/** Starts a turn; instructions and tools are not inherited, items are. */
function startTurn(outgoing, items, previousResponseId) {
  outgoing.send({
    case: "responseCreate",
    value: {
      model: MODEL,
      instructions: "Use the tool before you answer.",
      tools: [TOOL],
      store: false,
      previousResponseId,
      input: { value: { case: "items", value: { items } } },
    },
  });
}

const text = (value) => ({ value: { case: "text", value } });

const client = createClient(SessionService, createGrpcTransport({ baseUrl: TARGET }));
const outgoing = new Outgoing();
startTurn(outgoing, [
  {
    item: {
      case: "message",
      value: { role: "user", content: text("How many words has 'to be or not to be'?") },
    },
  },
]);

let turns = 1;
let calls = [];
let answered = false;
for await (const frame of client.connect(outgoing)) {
  for (const { event } of frame.events) {
    switch (event.case) {
      case "responseOutputTextDelta":
        process.stdout.write(event.value.delta);
        break;
      case "responseOutputItemDone":
        if (event.value.item?.item.case === "functionCall") calls.push(event.value.item.item.value);
        break;
      case "responseCompleted": {
        if (calls.length === 0 || turns === MOST_TURNS) {
          answered = calls.length === 0;
          outgoing.end();
          break;
        }
        const outputs = calls.map((call) => {
          const output = wordCount(call.arguments);
          process.stderr.write(`${call.name}(${call.arguments}) = ${output}\n`);
          return {
            item: {
              case: "functionCallOutput",
              value: { callId: call.callId, output: text(output) },
            },
          };
        });
        calls = [];
        turns += 1;
        startTurn(outgoing, outputs, event.value.response.id);
        break;
      }
      case "responseIncomplete":
      case "responseFailed":
        process.stderr.write(`${event.case}: ${event.value.response?.error?.message ?? ""}\n`);
        outgoing.end();
        break;
      case "error":
        process.stderr.write(`refused: ${event.value.error?.code}: ${event.value.error?.message}\n`);
        outgoing.end();
        break;
      default: // Events of items and parts, and kinds that newer servers add.
    }
  }
}
process.stdout.write("\n");
process.exitCode = answered ? 0 : 1;

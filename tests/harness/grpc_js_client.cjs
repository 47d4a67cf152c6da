// Calls of @grpc/grpc-js as the tests plan them: one JSON object a line in, one a line out.
'use strict';
const { createRequire } = require('node:module');
const path = require('node:path');
const readline = require('node:readline');

const home = path.join(__dirname, '../../client/typescript/package.json');
const grpc = createRequire(home)('@grpc/grpc-js');
const same = (bytes) => bytes;

function call(plan) {
  const credentials = plan.roots
    ? grpc.credentials.createSsl(Buffer.from(plan.roots, 'base64'))
    : grpc.credentials.createInsecure();
  const client = new grpc.Client(plan.target, credentials, {
    'grpc.max_receive_message_length': -1,
    'grpc.max_send_message_length': -1,
    'grpc.default_compression_algorithm': plan.compress ? 2 : 0,
    'grpc.enable_retries': 0,
  });
  const metadata = new grpc.Metadata();
  for (const [name, value] of plan.metadata) metadata.add(name, value);
  const options = plan.timeout_s ? { deadline: Date.now() + plan.timeout_s * 1000 } : {};
  const requests = plan.requests.map((text) => Buffer.from(text, 'base64'));
  const messages = [];
  return new Promise((resolve) => {
    const stream = client.makeBidiStreamRequest(plan.path, same, same, metadata, options);
    const done = (status) => {
      const [found] = status.metadata.get('grpc-status-details-bin');
      client.close();
      resolve({
        code: grpc.status[status.code],
        details: status.details,
        messages: messages.map((bytes) => bytes.toString('base64')),
        details_bin: found ? found.toString('base64') : '',
      });
    };
    stream.on('data', (bytes) => {
      messages.push(bytes);
      if (messages.length === plan.cancel_after) stream.cancel();
    });
    stream.on('error', () => {}); // It is the status again.
    stream.on('status', done);
    for (const request of requests) stream.write(request);
    if (plan.half_closes) stream.end();
  });
}

readline.createInterface({ input: process.stdin }).on('line', async (line) => {
  process.stdout.write(JSON.stringify(await call(JSON.parse(line))) + '\n');
});

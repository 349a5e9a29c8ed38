// Producer of rocketmq-client-nodejs. Commands: send, close.
'use strict';

const { Producer } = require('rocketmq-client-nodejs');
const { describe, options, quiet, run, say, serve, sslEnabled } = require('./line_protocol');

function build(fields) {
  return {
    topic: fields.topic,
    body: Buffer.from(fields.body, 'base64'),
    tag: fields.tag ?? undefined,
    keys: fields.keys ?? [],
    properties: new Map(Object.entries(fields.properties ?? {})),
  };
}

run(async () => {
  const { endpoint, topic } = options({ topic: [] });
  const producer = new Producer({ endpoints: endpoint, topics: topic, logger: quiet, sslEnabled });
  await producer.startup();
  say({ ready: 'producer' });
  await serve({
    async send({ messages }) {
      const receipts = [];
      for (const fields of messages) {
        const startedMs = Date.now();
        try {
          const receipt = await producer.send(build(fields));
          receipts.push({ message_id: receipt.messageId, offset: receipt.offset, at_ms: startedMs });
        } catch (error) {
          receipts.push({ error: describe(error) });
        }
      }
      return { receipts };
    },
  });
  await producer.shutdown();
});

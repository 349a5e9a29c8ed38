// Producer of rocketmq-client-nodejs. Commands: send, send_in_transaction, checked, recall, close.
'use strict';

const { Producer } = require('rocketmq-client-nodejs');
// Where the library's own examples take constants from; its index has none of them.
const { TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb.js');
const { describe, options, quiet, run, say, serve, sessionCredentials, sslEnabled } = require('./line_protocol');

const RESOLUTIONS = {
  commit: TransactionResolution.COMMIT,
  rollback: TransactionResolution.ROLLBACK,
  unknown: TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
};

function build(fields) {
  return {
    topic: fields.topic,
    body: Buffer.from(fields.body, 'base64'),
    tag: fields.tag ?? undefined,
    keys: fields.keys ?? [],
    properties: new Map(Object.entries(fields.properties ?? {})),
    messageGroup: fields.message_group ?? undefined,
    liteTopic: fields.lite_topic ?? undefined,
    deliveryTimestamp: fields.delivery_ms == null ? undefined : new Date(fields.delivery_ms),
    priority: fields.priority ?? undefined,
  };
}

run(async () => {
  const { endpoint, topic, checker: resolution } = options({ topic: [] });
  const checked = [];
  const checker = {
    async check(message) {
      checked.push(message.messageId);
      return RESOLUTIONS[resolution];
    },
  };
  const producer = new Producer({
    endpoints: endpoint,
    topics: topic,
    checker: resolution && checker,
    logger: quiet,
    sessionCredentials,
    sslEnabled,
  });
  await producer.startup();
  say({ ready: 'producer' });
  await serve({
    async send({ messages }) {
      const receipts = [];
      for (const fields of messages) {
        const startedMs = Date.now();
        try {
          const receipt = await producer.send(build(fields));
          receipts.push({
            message_id: receipt.messageId,
            offset: receipt.offset,
            recall_handle: receipt.recallHandle || null,
            at_ms: startedMs,
          });
        } catch (error) {
          receipts.push({ error: describe(error) });
        }
      }
      return { receipts };
    },
    async send_in_transaction(command) {
      const startedMs = Date.now();
      const transaction = producer.beginTransaction();
      const receipt = await producer.send(build(command.message), transaction);
      if (command.resolution === 'commit') {
        await transaction.commit();
      } else if (command.resolution === 'rollback') {
        await transaction.rollback();
      }
      return { message_id: receipt.messageId, at_ms: startedMs };
    },
    async checked() {
      return { message_ids: checked };
    },
    async recall(command) {
      await producer.recallMessage(command.topic, command.recall_handle);
      return {};
    },
  });
  await producer.shutdown();
});

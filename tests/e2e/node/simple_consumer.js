// Simple consumer of rocketmq-client-nodejs. Commands: receive, ack, change_invisible, close.
'use strict';

const { SimpleConsumer } = require('rocketmq-client-nodejs');
const {
  describe, messageLine, options, quiet, run, say, serve, sessionCredentials, sslEnabled, subscriptions,
} = require('./line_protocol');

run(async () => {
  const found = options({ topic: [], filter: '*', 'filter-type': 'tag', 'await-s': '5' });
  const consumer = new SimpleConsumer({
    endpoints: found.endpoint,
    consumerGroup: found.group,
    subscriptions: subscriptions(found),
    awaitDuration: Number(found['await-s']) * 1000,
    logger: quiet,
    sslEnabled,
    sessionCredentials,
  });
  await consumer.startup();
  say({ ready: 'simple consumer' });
  // By number, so that a command can name one of several deliveries of a message.
  const deliveries = [];
  await serve({
    async receive(command) {
      const messages = [];
      for (const message of await consumer.receive(command.count, command.invisible_s * 1000)) {
        messages.push({ ...messageLine(message), delivery: deliveries.length });
        deliveries.push(message);
      }
      return { messages };
    },
    async ack(command) {
      const results = [];
      for (const delivery of command.deliveries) {
        try {
          await consumer.ack(deliveries[delivery]);
          results.push({ delivery });
        } catch (error) {
          results.push({ delivery, error: describe(error) });
        }
      }
      return { results };
    },
    async change_invisible(command) {
      await consumer.changeInvisibleDuration(deliveries[command.delivery], command.invisible_s * 1000);
      return {};
    },
  });
  await consumer.shutdown();
});

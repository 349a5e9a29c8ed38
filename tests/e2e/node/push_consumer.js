// Push consumer of rocketmq-client-nodejs: one line per consumed message until `close`.
'use strict';

const { ConsumeResult, PushConsumer } = require('rocketmq-client-nodejs');
const {
  messageLine, options, quiet, run, say, serve, sessionCredentials, sslEnabled, subscriptions,
} = require('./line_protocol');

run(async () => {
  const found = options({ topic: [], filter: '*', 'filter-type': 'tag', 'failed-attempts': '0' });
  const failedAttempts = Number(found['failed-attempts']);
  const consumer = new PushConsumer({
    endpoints: found.endpoint,
    consumerGroup: found.group,
    subscriptions: subscriptions(found),
    messageListener: {
      async consume(message) {
        const failed = message.deliveryAttempt <= failedAttempts;
        say({ message: { ...messageLine(message), failed } });
        return failed ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
      },
    },
    logger: quiet,
    sslEnabled,
    sessionCredentials,
  });
  await consumer.startup();
  say({ ready: 'push consumer' });
  await serve({});
  await consumer.shutdown();
});

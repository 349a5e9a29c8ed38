// Lite push consumer of rocketmq-client-nodejs: one line per consumed message, and the commands of lite topics.
'use strict';

const { ConsumeResult, ConsumeResultSuspend, LitePushConsumerBuilder, OffsetOption } = require('rocketmq-client-nodejs');
const { messageLine, options, quiet, run, say, serve, sessionCredentials, sslEnabled } = require('./line_protocol');

const STARTS = {
  policy: value => ({ last: OffsetOption.LAST_OFFSET, min: OffsetOption.MIN_OFFSET, max: OffsetOption.MAX_OFFSET })[value],
  offset: OffsetOption.ofOffset,
  tail_n: OffsetOption.ofTailN,
  timestamp: OffsetOption.ofTimestamp,
};

function start(wanted) {
  const [kind, value] = Object.entries(wanted)[0];
  return STARTS[kind](value);
}

run(async () => {
  const found = options({ 'failed-attempts': '0' });
  const failedAttempts = Number(found['failed-attempts']);
  const suspendedMs = Number(found['suspended-ms'] ?? 0);
  const refusal = suspendedMs > 0 ? ConsumeResultSuspend.of(suspendedMs) : ConsumeResult.FAILURE;
  const attempts = new Map();
  const messageListener = {
    async consume(message) {
      const attempt = (attempts.get(message.messageId) ?? 0) + 1;
      attempts.set(message.messageId, attempt);
      const failed = attempt <= failedAttempts;
      say({ message: { ...messageLine(message), failed } });
      return failed ? refusal : ConsumeResult.SUCCESS;
    },
  };
  const consumer = await new LitePushConsumerBuilder()
    .setClientConfiguration({ endpoints: found.endpoint, logger: quiet, sessionCredentials, sslEnabled })
    .setConsumerGroup(found.group)
    .bindTopic(found.topic)
    .setMessageListener(messageListener)
    .build();
  say({ ready: 'lite push consumer' });
  await serve({
    async subscribe(command) {
      await consumer.subscribeLite(command.lite_topic, command.start ? start(command.start) : undefined);
      return {};
    },
    async unsubscribe(command) {
      await consumer.unsubscribeLite(command.lite_topic);
      return {};
    },
    async subscribed() {
      return { lite_topics: [...consumer.getLiteTopicSet()] };
    },
  });
  await consumer.shutdown();
});

package main

import rmq "github.com/apache/rocketmq-clients/golang/v5"

// consumePushed says one line per consumed message until close.
func consumePushed(given options) error {
	failedAttempts, err := given.number("failed-attempts", 0)
	if err != nil {
		return err
	}
	subscriptions, err := given.subscriptions()
	if err != nil {
		return err
	}
	consume := func(message *rmq.MessageView) rmq.ConsumerResult {
		failed := message.GetDeliveryAttempt() <= int32(failedAttempts)
		shown := messageLine(message)
		shown["failed"] = failed
		if err := say(line{"message": shown}); err != nil || failed {
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	}
	consumer, err := rmq.NewPushConsumer(
		given.configuration(),
		rmq.WithPushSubscriptionExpressions(subscriptions),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: consume}),
	)
	if err != nil {
		return err
	}
	if err := consumer.Start(); err != nil {
		return err
	}
	if err := say(line{"ready": "push consumer"}); err != nil {
		return err
	}
	if err := serve(nil); err != nil {
		return err
	}
	return consumer.GracefulStop()
}

package main

import (
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

// liteInvisible is how long a message is hidden that the listener has not done yet: this library does not let the
// broker extend it.
const liteInvisible = 10 * time.Second

// refusals counts how often each message was consumed.
type refusals struct {
	counted  sync.Mutex
	attempts map[string]int
	wanted   int
}

func (r *refusals) refuses(messageID string) bool {
	r.counted.Lock()
	defer r.counted.Unlock()
	r.attempts[messageID]++
	return r.attempts[messageID] <= r.wanted
}

// consumeLitePushed says one line per consumed message, and answers the commands of lite topics.
func consumeLitePushed(given options) error {
	failedAttempts, err := given.number("failed-attempts", 0)
	if err != nil {
		return err
	}
	suspendedMs, err := given.number("suspended-ms", 0)
	if err != nil {
		return err
	}
	refusal := rmq.FAILURE
	if suspendedMs > 0 {
		refusal = rmq.NewConsumerResultSuspend(time.Duration(suspendedMs) * time.Millisecond)
	}
	refused := &refusals{attempts: map[string]int{}, wanted: failedAttempts}
	consume := func(message *rmq.MessageView) rmq.ConsumerResult {
		failed := refused.refuses(message.GetMessageId())
		shown := messageLine(message)
		shown["failed"] = failed
		if err := say(line{"message": shown}); err != nil || failed {
			return refusal
		}
		return rmq.SUCCESS
	}
	consumer, err := rmq.NewLitePushConsumer(
		given.configuration(),
		rmq.NewLitePushConsumerConfig(given.text("topic", ""), liteInvisible),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: consume}),
	)
	if err != nil {
		return err
	}
	if err := consumer.Start(); err != nil {
		return err
	}
	if err := say(line{"ready": "lite push consumer"}); err != nil {
		return err
	}
	answers := map[string]answer{
		"subscribe": func(asked command) (line, error) {
			if asked.Start != nil {
				return nil, unsupported("where to start in a lite topic")
			}
			return line{}, consumer.SubscribeLite(asked.LiteTopic)
		},
		"unsubscribe": func(asked command) (line, error) { return line{}, consumer.UnSubscribeLite(asked.LiteTopic) },
		"subscribed":  func(command) (line, error) { return nil, unsupported("what it is subscribed to") },
	}
	if err := serve(answers); err != nil {
		return err
	}
	return consumer.GracefulStop()
}

package main

import (
	"context"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

// deliveries are those handed out so far, by number, so that a command can name one of several of a message.
type deliveries struct {
	consumer rmq.SimpleConsumer
	messages []*rmq.MessageView
}

func (d *deliveries) receive(asked command) (line, error) {
	messages, err := d.consumer.Receive(context.Background(), asked.Count, asked.invisible())
	if status, ok := rmq.AsErrRpcStatus(err); ok && status.GetCode() == int32(v2.Code_MESSAGE_NOT_FOUND) {
		messages, err = nil, nil // only this library calls it an error that there is nothing
	}
	if err != nil {
		return nil, err
	}
	lines := []line{}
	for _, message := range messages {
		shown := messageLine(message)
		shown["delivery"] = len(d.messages)
		lines = append(lines, shown)
		d.messages = append(d.messages, message)
	}
	return line{"messages": lines}, nil
}

// ack cannot show a refused acknowledgement: the library returns an error only when the call itself failed.
func (d *deliveries) ack(asked command) (line, error) {
	results := []line{}
	for _, number := range asked.Deliveries {
		result := line{}
		if err := d.consumer.Ack(context.Background(), d.messages[number]); err != nil {
			result = failure(err)
		}
		result["delivery"] = number
		results = append(results, result)
	}
	return line{"results": results}, nil
}

func (d *deliveries) changeInvisible(asked command) (line, error) {
	return line{}, d.consumer.ChangeInvisibleDuration(d.messages[asked.Delivery], asked.invisible())
}

func consumeSimply(given options) error {
	await, err := given.seconds("await-s", 5)
	if err != nil {
		return err
	}
	subscriptions, err := given.subscriptions()
	if err != nil {
		return err
	}
	consumer, err := rmq.NewSimpleConsumer(
		given.configuration(),
		rmq.WithSimpleAwaitDuration(await),
		rmq.WithSimpleSubscriptionExpressions(subscriptions),
	)
	if err != nil {
		return err
	}
	if err := consumer.Start(); err != nil {
		return err
	}
	if err := say(line{"ready": "simple consumer"}); err != nil {
		return err
	}
	handed := &deliveries{consumer: consumer}
	answers := map[string]answer{
		"receive":          handed.receive,
		"ack":              handed.ack,
		"change_invisible": handed.changeInvisible,
	}
	if err := serve(answers); err != nil {
		return err
	}
	return consumer.GracefulStop()
}

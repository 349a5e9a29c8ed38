package main

import (
	"context"
	"fmt"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

// outgoing is a message as the command `send` has it.
type outgoing struct {
	Topic      string
	Body       []byte
	Tag        *string
	Keys       []string
	Properties map[string]string
}

func (o outgoing) build() *rmq.Message {
	message := &rmq.Message{Topic: o.Topic, Body: o.Body, Tag: o.Tag}
	message.SetKeys(o.Keys...)
	for name, value := range o.Properties {
		message.AddProperty(name, value)
	}
	return message
}

func produce(given options) error {
	producer, err := rmq.NewProducer(given.configuration(), rmq.WithTopics(given["topic"]...))
	if err != nil {
		return err
	}
	if err := producer.Start(); err != nil {
		return err
	}
	if err := say(line{"ready": "producer"}); err != nil {
		return err
	}
	send := func(asked command) (line, error) {
		receipts := []line{}
		for _, message := range asked.Messages {
			receipts = append(receipts, sendOne(producer, message))
		}
		return line{"receipts": receipts}, nil
	}
	if err := serve(map[string]answer{"send": send}); err != nil {
		return err
	}
	return producer.GracefulStop()
}

func sendOne(producer rmq.Producer, message outgoing) line {
	startedMs := time.Now().UnixMilli()
	receipts, err := producer.Send(context.Background(), message.build())
	if err != nil {
		return failure(err)
	}
	if len(receipts) != 1 {
		return failure(fmt.Errorf("%d receipts for one message", len(receipts)))
	}
	return line{"message_id": receipts[0].MessageID, "offset": receipts[0].Offset, "at_ms": startedMs}
}

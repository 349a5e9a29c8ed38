package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

// outgoing is a message as the commands `send` and `send_in_transaction` have it.
type outgoing struct {
	Topic        string
	Body         []byte
	Tag          *string
	Keys         []string
	Properties   map[string]string
	MessageGroup *string `json:"message_group"`
	DeliveryMs   *int64  `json:"delivery_ms"`
	Priority     *int32
	LiteTopic    *string `json:"lite_topic"`
}

func (o outgoing) build() (*rmq.Message, error) {
	message := &rmq.Message{Topic: o.Topic, Body: o.Body, Tag: o.Tag}
	message.SetKeys(o.Keys...)
	for name, value := range o.Properties {
		message.AddProperty(name, value)
	}
	if o.MessageGroup != nil {
		message.SetMessageGroup(*o.MessageGroup)
	}
	if o.LiteTopic != nil {
		message.SetLiteTopic(*o.LiteTopic)
	}
	if o.DeliveryMs != nil {
		message.SetDelayTimestamp(time.UnixMilli(*o.DeliveryMs))
	}
	if o.Priority != nil {
		if err := message.SetPriority(*o.Priority); err != nil {
			return nil, err
		}
	}
	return message, nil
}

var resolutions = map[string]rmq.TransactionResolution{
	"commit":   rmq.COMMIT,
	"rollback": rmq.ROLLBACK,
	"unknown":  rmq.UNKNOWN,
}

// checker answers every check alike and keeps about which messages it was asked.
type checker struct {
	resolution rmq.TransactionResolution
	asked      sync.Mutex
	messageIDs []string
}

func (c *checker) check(message *rmq.MessageView) rmq.TransactionResolution {
	c.asked.Lock()
	defer c.asked.Unlock()
	c.messageIDs = append(c.messageIDs, message.GetMessageId())
	return c.resolution
}

func (c *checker) checked(command) (line, error) {
	c.asked.Lock()
	defer c.asked.Unlock()
	return line{"message_ids": append([]string{}, c.messageIDs...)}, nil
}

func produce(given options) error {
	settings := []rmq.ProducerOption{rmq.WithTopics(given["topic"]...)}
	checks := &checker{}
	if name := given.text("checker", ""); name != "" {
		resolution, known := resolutions[name]
		if !known {
			return fmt.Errorf("unknown checker: %q", name)
		}
		checks.resolution = resolution
		settings = append(settings, rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: checks.check}))
	}
	producer, err := rmq.NewProducer(given.configuration(), settings...)
	if err != nil {
		return err
	}
	if err := producer.Start(); err != nil {
		return err
	}
	if err := say(line{"ready": "producer"}); err != nil {
		return err
	}
	answers := map[string]answer{
		"send": func(asked command) (line, error) {
			receipts := []line{}
			for _, message := range asked.Messages {
				receipts = append(receipts, sendOne(producer, message))
			}
			return line{"receipts": receipts}, nil
		},
		"send_in_transaction": func(asked command) (line, error) { return sendInTransaction(producer, asked) },
		"checked":             checks.checked,
		"recall": func(asked command) (line, error) {
			_, err := producer.Recall(context.Background(), asked.Topic, asked.RecallHandle)
			return line{}, err
		},
	}
	if err := serve(answers); err != nil {
		return err
	}
	return producer.GracefulStop()
}

func sendOne(producer rmq.Producer, outgoing outgoing) line {
	message, err := outgoing.build()
	if err != nil {
		return failure(err)
	}
	startedMs := time.Now().UnixMilli()
	receipt, err := only(producer.Send(context.Background(), message))
	if err != nil {
		return failure(err)
	}
	var recallHandle any
	if receipt.RecallHandle != "" {
		recallHandle = receipt.RecallHandle
	}
	return line{
		"message_id":    receipt.MessageID,
		"offset":        receipt.Offset,
		"recall_handle": recallHandle,
		"at_ms":         startedMs,
	}
}

// only is the receipt of a call that sent one message.
func only(receipts []*rmq.SendReceipt, err error) (*rmq.SendReceipt, error) {
	if err == nil && len(receipts) != 1 {
		err = fmt.Errorf("%d receipts for one message", len(receipts))
	}
	if err != nil {
		return nil, err
	}
	return receipts[0], nil
}

func sendInTransaction(producer rmq.Producer, asked command) (line, error) {
	message, err := asked.Message.build()
	if err != nil {
		return nil, err
	}
	startedMs := time.Now().UnixMilli()
	transaction := producer.BeginTransaction()
	receipt, err := only(producer.SendWithTransaction(context.Background(), message, transaction))
	if err != nil {
		return nil, err
	}
	switch asked.Resolution {
	case "commit":
		err = transaction.Commit()
	case "rollback":
		err = transaction.RollBack()
	case "none":
	default:
		err = fmt.Errorf("unknown resolution: %q", asked.Resolution)
	}
	return line{"message_id": receipt.MessageID, "at_ms": startedMs}, err
}

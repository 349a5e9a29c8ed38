package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

type line map[string]any

// command has the fields of every command; each uses its own.
type command struct {
	Command      string
	Messages     []outgoing
	Message      outgoing
	Resolution   string
	Topic        string
	RecallHandle string `json:"recall_handle"`
	Count        int32
	InvisibleS   int64 `json:"invisible_s"`
	Deliveries   []int
	Delivery     int
	LiteTopic    string `json:"lite_topic"`
	Start        map[string]any
}

func (c command) invisible() time.Duration {
	return time.Duration(c.InvisibleS) * time.Second
}

type answer func(command) (line, error)

var output sync.Mutex

// say writes one line at once.
func say(content line) error {
	text, err := json.Marshal(content)
	if err != nil {
		return err
	}
	output.Lock()
	defer output.Unlock()
	_, err = os.Stdout.Write(append(text, '\n'))
	return err
}

// serve answers every command with one line, in order, until close or the end of the input.
func serve(answers map[string]answer) error {
	input := bufio.NewReader(os.Stdin)
	for {
		text, err := input.ReadBytes('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		var asked command
		if err := json.Unmarshal(text, &asked); err != nil {
			return err
		}
		if asked.Command == "close" {
			return nil
		}
		if err := say(answered(answers, asked)); err != nil {
			return err
		}
	}
}

func answered(answers map[string]answer, asked command) line {
	to, known := answers[asked.Command]
	if !known {
		return failure(fmt.Errorf("unknown command %q", asked.Command))
	}
	content, err := to(asked)
	if err != nil {
		return failure(err)
	}
	return content
}

// named is nil for what has no name.
func named(name string) any {
	if name == "" {
		return nil
	}
	return name
}

// unsupported is what the library does not have.
type unsupported string

func (u unsupported) Error() string { return string(u) }

// failure describes what the library returned as an error.
func failure(err error) line {
	var code any
	if status, ok := rmq.AsErrRpcStatus(err); ok {
		code = status.GetCode()
	}
	kind := fmt.Sprintf("%T", err)
	if _, missing := err.(unsupported); missing {
		kind = "Unsupported"
	}
	return line{"error": line{"type": kind, "text": err.Error(), "code": code}}
}

func messageLine(message *rmq.MessageView) line {
	keys := append([]string{}, message.GetKeys()...) // no keys are an empty list, not null
	slices.Sort(keys)
	properties := message.GetProperties()
	if properties == nil {
		properties = map[string]string{}
	}
	var bornMs any
	if born := message.GetBornTimestamp(); born != nil {
		bornMs = born.UnixMilli()
	}
	return line{
		"message_id":    message.GetMessageId(),
		"topic":         message.GetTopic(),
		"body":          message.GetBody(),
		"tag":           message.GetTag(),
		"keys":          keys,
		"properties":    properties,
		"message_group": message.GetMessageGroup(),
		"lite_topic":    named(message.GetLiteTopic()),
		"priority":      nil, // the library does not show it
		"attempt":       message.GetDeliveryAttempt(),
		"born_ms":       bornMs,
		"corrupted":     false, // the library keeps what it found to itself; its push consumer refuses such a message
		"at_ms":         time.Now().UnixMilli(),
	}
}

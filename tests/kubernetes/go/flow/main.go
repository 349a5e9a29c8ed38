// Command flow does with the remoting client for Go, the one of RocketMQ 4, what flow.py does with that of RocketMQ 5:
// it sends numbered messages until its input ends, receives them, and prints one line of JSON that says what became of
// them.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	senders      = 4
	drainTimeout = 120 * time.Second
	shown        = 20
)

type record struct {
	sync.Mutex
	acknowledged map[string]bool
	received     map[string]int
	errors       map[string]int
	last         time.Time
	longestPause time.Duration
	slowestSend  time.Duration
}

func (r *record) notePause() {
	now := time.Now()
	r.longestPause = max(r.longestPause, now.Sub(r.last))
	r.last = now
}

func (r *record) note(body string, began time.Time, err error) {
	r.Lock()
	defer r.Unlock()
	if err != nil {
		r.errors[fmt.Sprintf("%.200s", err)]++
		return
	}
	r.acknowledged[body] = true
	r.slowestSend = max(r.slowestSend, time.Since(began))
	r.notePause()
}

func (r *record) missing() []string {
	r.Lock()
	defer r.Unlock()
	found := []string{}
	for body := range r.acknowledged {
		if r.received[body] == 0 {
			found = append(found, body)
		}
	}
	return found
}

func (r *record) summary() map[string]any {
	missing := r.missing()
	r.Lock()
	defer r.Unlock()
	refused, duplicated := 0, 0
	for _, count := range r.errors {
		refused += count
	}
	for _, count := range r.received {
		duplicated += count - 1
	}
	return map[string]any{
		"acknowledged":    len(r.acknowledged),
		"refused":         refused,
		"lost":            len(missing),
		"duplicated":      duplicated,
		"disordered":      0,
		"longest_pause_s": float64(r.longestPause.Milliseconds()) / 1000,
		"slowest_send_s":  float64(r.slowestSend.Milliseconds()) / 1000,
		"missing":         missing[:min(len(missing), shown)],
		"errors":          r.errors,
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// nameServer looks the host up, because the client takes addresses only.
func nameServer(endpoint string) primitive.NsResolver {
	host, port, err := net.SplitHostPort(endpoint)
	must(err)
	addresses, err := net.LookupHost(host)
	must(err)
	return primitive.NewPassthroughResolver([]string{net.JoinHostPort(addresses[0], port)})
}

func (r *record) send(from rocketmq.Producer, topic, line string, period time.Duration, stopped <-chan struct{}) {
	ticks := time.NewTicker(period)
	defer ticks.Stop()
	for number := 0; ; number++ {
		select {
		case <-stopped:
			return
		case <-ticks.C:
		}
		body := fmt.Sprintf("%s:%d", line, number)
		began := time.Now()
		result, err := from.SendSync(context.Background(), primitive.NewMessage(topic, []byte(body)))
		if err == nil && result.Status != primitive.SendOK {
			err = fmt.Errorf("status %d", result.Status)
		}
		r.note(body, began, err)
	}
}

func main() {
	endpoint := flag.String("endpoint", "", "host and port of a broker")
	topic := flag.String("topic", "", "")
	group := flag.String("group", "", "")
	rate := flag.Float64("rate", 20, "messages a second")
	flag.Parse()
	rlog.SetLogLevel("fatal")
	r := &record{acknowledged: map[string]bool{}, received: map[string]int{}, errors: map[string]int{}}

	receiving, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(nameServer(*endpoint)), consumer.WithGroupName(*group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	must(err)
	must(receiving.Subscribe(*topic, consumer.MessageSelector{}, func(
		_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		r.Lock()
		defer r.Unlock()
		for _, each := range messages {
			r.received[string(each.Body)]++
		}
		return consumer.ConsumeSuccess, nil
	}))
	must(receiving.Start())
	sending, err := rocketmq.NewProducer(producer.WithNsResolver(nameServer(*endpoint)), producer.WithRetry(2))
	must(err)
	must(sending.Start())

	stopped := make(chan struct{})
	var running sync.WaitGroup
	r.last = time.Now()
	for each := range senders {
		running.Add(1)
		line := fmt.Sprintf("%d.%d.%d", os.Getpid(), time.Now().UnixNano(), each)
		period := time.Duration(float64(time.Second) * senders / *rate)
		go func() {
			defer running.Done()
			r.send(sending, *topic, line, period, stopped)
		}()
	}
	fmt.Println(`{"started": true}`)
	_, _ = io.ReadAll(os.Stdin)
	close(stopped)
	running.Wait()
	r.Lock()
	r.notePause()
	r.Unlock()
	for deadline := time.Now().Add(drainTimeout); len(r.missing()) > 0 && time.Now().Before(deadline); {
		time.Sleep(200 * time.Millisecond)
	}
	line, err := json.Marshal(r.summary())
	must(err)
	fmt.Println(string(line))
}

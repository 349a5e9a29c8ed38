// Producer and consumers of the official Go client, chosen by the first argument.
// Speaks the line protocol of tests/e2e/README.md.
package main

import (
	"crypto/tls"
	"fmt"
	"os"
	"strconv"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	"go.uber.org/zap"
)

// options are --name value; a repeated name has several values.
type options map[string][]string

func parse(arguments []string) options {
	found := options{}
	for i := 0; i+1 < len(arguments); i += 2 {
		name := arguments[i][len("--"):]
		found[name] = append(found[name], arguments[i+1])
	}
	return found
}

func (o options) text(name, fallback string) string {
	if values := o[name]; len(values) > 0 {
		return values[0]
	}
	return fallback
}

func (o options) number(name string, fallback int) (int, error) {
	return strconv.Atoi(o.text(name, strconv.Itoa(fallback)))
}

func (o options) seconds(name string, fallback int) (time.Duration, error) {
	count, err := o.number(name, fallback)
	return time.Duration(count) * time.Second, err
}

func (o options) configuration() *rmq.Config {
	return &rmq.Config{
		Endpoint:      o.text("endpoint", ""),
		ConsumerGroup: o.text("group", ""),
		Credentials: &credentials.SessionCredentials{
			AccessKey:    os.Getenv("CLIENT_USER"),
			AccessSecret: os.Getenv("CLIENT_SECRET"),
		},
	}
}

func (o options) subscriptions() (map[string]*rmq.FilterExpression, error) {
	kinds := map[string]rmq.FilterExpressionType{"tag": rmq.TAG, "sql": rmq.SQL92}
	kind, known := kinds[o.text("filter-type", "tag")]
	if !known {
		return nil, fmt.Errorf("unknown filter type: %q", o["filter-type"])
	}
	subscriptions := map[string]*rmq.FilterExpression{}
	for _, topic := range o["topic"] {
		subscriptions[topic] = rmq.NewFilterExpressionWithType(o.text("filter", "*"), kind)
	}
	return subscriptions, nil
}

// prepare sets what the library keeps for the whole process: where its logs go, and TLS.
//
// Of its two logs one is by default under /logs and one in /tmp, the same file for all processes. Its TLS trusts any
// server; here it trusts whom the system trusts, which SSL_CERT_FILE decides.
func prepare(logLevel string) error {
	logs := map[string]string{"rocketmq.client.logRoot": os.Getenv("HOME"), "rocketmq.client.logLevel": logLevel}
	for name, value := range logs {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	rmq.ResetLogger()
	rmq.EnableSsl = os.Getenv("CLIENT_TLS") == "on"
	connection := rmq.WithRpcClientConnOption(rmq.WithZapLogger(zap.NewNop()), rmq.WithTLSConfig(&tls.Config{}))
	connect := rmq.NewRpcClient
	rmq.NewRpcClient = func(target string, more ...rmq.RpcClientOption) (rmq.RpcClient, error) {
		return connect(target, append(more, connection)...)
	}
	return nil
}

func run(arguments []string) error {
	programs := map[string]func(options) error{
		"producer":           produce,
		"simple-consumer":    consumeSimply,
		"push-consumer":      consumePushed,
		"lite-push-consumer": consumeLitePushed,
	}
	if len(arguments) == 0 || programs[arguments[0]] == nil {
		return fmt.Errorf("unknown client: %q", arguments)
	}
	level := "warn"
	if arguments[0] == "lite-push-consumer" {
		level = "info" // only its log tells that another client took a lite topic over
	}
	if err := prepare(level); err != nil {
		return err
	}
	return programs[arguments[0]](parse(arguments[1:]))
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// The interoperability cases on grpc-go: interop target [ca].
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	prefix    = "/interop.Service/"
	refusal   = "größer als 100 %: 大"
	patience  = 20 * time.Second
	largeSize = 4 << 20

	largeHeaderSize = 15_000
)

// rawCodec hands bytes through as they are.
type rawCodec struct{}

func (rawCodec) Name() string                     { return "raw" }
func (rawCodec) Marshal(body any) ([]byte, error) { return *body.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, to any) error {
	*to.(*[]byte) = bytes.Clone(data)
	return nil
}

type client struct{ channel *grpc.ClientConn }

func (c client) call(ctx context.Context, method string, body []byte, options ...grpc.CallOption) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var answer []byte
	err := c.channel.Invoke(ctx, prefix+method, &body, &answer, options...)
	return answer, err
}

func (c client) equal(method string, size int, options ...grpc.CallOption) (string, error) {
	body := make([]byte, size)
	for i := range body {
		run := uint32(i / 16)
		body[i] = byte(run * run * 2_654_435_761 >> 24) // gzip makes it some eight times smaller
	}
	answer, err := c.call(context.Background(), method, body, options...)
	if err == nil && !bytes.Equal(answer, body) {
		err = fmt.Errorf("%d other bytes came back", len(answer))
	}
	return fmt.Sprintf("%d bytes", size), err
}

func (c client) expect(method string, body string, wanted string) error {
	answer, err := c.call(context.Background(), method, []byte(body))
	if err == nil && string(answer) != wanted {
		err = fmt.Errorf("%s answered %q instead of %q", method, answer, wanted)
	}
	return err
}

func receive(stream grpc.ClientStream, wanted string) error {
	var answer []byte
	if err := stream.RecvMsg(&answer); err != nil {
		return err
	}
	if string(answer) != wanted {
		return fmt.Errorf("%q instead of %q", answer, wanted)
	}
	return nil
}

func ended(stream grpc.ClientStream) error {
	var answer []byte
	switch err := stream.RecvMsg(&answer); {
	case err == nil:
		return fmt.Errorf("one message too many: %q", answer)
	case !errors.Is(err, io.EOF):
		return err
	default:
		return nil
	}
}

func (c client) open(ctx context.Context, method string, description grpc.StreamDesc, first string) (grpc.ClientStream, error) {
	stream, err := c.channel.NewStream(ctx, &description, prefix+method)
	if err != nil || description.ClientStreams {
		return stream, err
	}
	body := []byte(first)
	if err := stream.SendMsg(&body); err != nil {
		return nil, err
	}
	return stream, stream.CloseSend()
}

func (c client) serverStream() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stream, err := c.open(ctx, "Stream", grpc.StreamDesc{ServerStreams: true}, "")
	if err != nil {
		return "", err
	}
	for number := range 100 {
		if err := receive(stream, strconv.Itoa(number)); err != nil {
			return "", err
		}
	}
	return "100 messages", ended(stream)
}

func (c client) bidi() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stream, err := c.open(ctx, "PingPong", grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "")
	if err != nil {
		return "", err
	}
	for number := range 20 {
		ping := []byte(strconv.Itoa(number))
		if err := stream.SendMsg(&ping); err != nil {
			return "", err
		}
		if err := receive(stream, string(ping)); err != nil {
			return "", err
		}
	}
	if err := stream.CloseSend(); err != nil {
		return "", err
	}
	if err := receive(stream, "end"); err != nil {
		return "", err
	}
	return "20 pings", ended(stream)
}

func (c client) earlyEnd() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stream, err := c.open(ctx, "PingPong", grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "")
	if err != nil {
		return "", err
	}
	for _, text := range []string{"0", "bye"} {
		ping := []byte(text)
		if err := stream.SendMsg(&ping); err != nil {
			return "", err
		}
	}
	if err := receive(stream, "0"); err != nil {
		return "", err
	}
	return "the server ended it", ended(stream)
}

func (c client) cancel() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stream, err := c.open(ctx, "Park", grpc.StreamDesc{ServerStreams: true}, "cancelled")
	if err != nil {
		return "", err
	}
	if err := receive(stream, "parked"); err != nil {
		return "", err
	}
	cancel()
	return "the server saw the end", c.expect("Ended", "cancelled", "ended")
}

func (c client) deadline() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	started := time.Now()
	_, err := c.call(ctx, "Silent", []byte("late"))
	took := time.Since(started)
	if status.Code(err) != codes.DeadlineExceeded || took < 250*time.Millisecond || took > 5*time.Second {
		return "", fmt.Errorf("%v after %v", err, took)
	}
	return fmt.Sprintf("%d ms", took.Milliseconds()), c.expect("Ended", "late", "ended")
}

func (c client) metadata() (string, error) {
	binary := make([]byte, 256)
	for i := range binary {
		binary[i] = byte(i)
	}
	ctx := metadata.AppendToOutgoingContext(context.Background(), "x-interop", "value 1", "x-interop-bin", string(binary))
	answer, err := c.call(ctx, "Metadata", []byte("x-interop"))
	if err == nil && string(answer) != "value 1" {
		err = fmt.Errorf("%q came back", answer)
	}
	return "", err
}

func (c client) largeHeader() (string, error) {
	value := strings.Repeat("x", largeHeaderSize)
	ctx := metadata.AppendToOutgoingContext(context.Background(), "x-large", value)
	answer, err := c.call(ctx, "Metadata", []byte("x-large"))
	if err == nil && string(answer) != value {
		err = fmt.Errorf("%d other bytes came back", len(answer))
	}
	return fmt.Sprintf("%d bytes", len(value)), err
}

func (c client) refused(method string, code codes.Code, message string) (string, error) {
	_, err := c.call(context.Background(), method, nil)
	got := status.Convert(err)
	if got.Code() != code || (message != "" && got.Message() != message) {
		return "", fmt.Errorf("%v", err)
	}
	return got.Message(), nil
}

func (c client) many() (string, error) {
	peer, err := c.call(context.Background(), "Peer", nil)
	if err != nil {
		return "", err
	}
	for number := range 1000 {
		if err := c.expect("Echo", strconv.Itoa(number), strconv.Itoa(number)); err != nil {
			return "", err
		}
	}
	return "1000 calls", c.expect("Peer", "", string(peer))
}

func (c client) concurrent() (string, error) {
	failures := make(chan error)
	for number := range 100 {
		go func() { failures <- c.expect("Together", strconv.Itoa(number), strconv.Itoa(number)) }()
	}
	var failed error
	for range 100 {
		failed = errors.Join(failed, <-failures)
	}
	return "100 calls", failed
}

func report(name string, run func() (string, error)) {
	detail, err := run()
	if err != nil {
		detail = err.Error()
	}
	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"case": name, "ok": err == nil, "detail": detail})
}

func connect() (*grpc.ClientConn, error) {
	security := insecure.NewCredentials()
	if len(os.Args) > 2 {
		trusted, err := credentials.NewClientTLSFromFile(os.Args[2], "")
		if err != nil {
			return nil, err
		}
		security = trusted
	}
	return grpc.NewClient(
		os.Args[1],
		grpc.WithTransportCredentials(security),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{}), grpc.MaxCallRecvMsgSize(2*largeSize)),
	)
}

func main() {
	channel, err := connect()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer channel.Close()
	c := client{channel}
	report("unary", func() (string, error) { return c.equal("Echo", 1000) })
	report("empty", func() (string, error) { return c.equal("Echo", 0) })
	report("server stream", c.serverStream)
	report("bidi", c.bidi)
	report("early end", c.earlyEnd)
	report("cancel", c.cancel)
	report("deadline", c.deadline)
	report("4 MiB", func() (string, error) { return c.equal("Echo", largeSize) })
	report("metadata", c.metadata)
	report("large header", c.largeHeader)
	report("gzip", func() (string, error) { return c.equal("Compressed", 1_000_000, grpc.UseCompressor(gzip.Name)) })
	report("unknown", func() (string, error) { return c.refused("Unknown", codes.Unimplemented, "") })
	report("error", func() (string, error) { return c.refused("Refuse", codes.InvalidArgument, refusal) })
	report("1000 calls", c.many)
	report("100 at once", c.concurrent)
}

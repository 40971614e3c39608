// Peerload sends delayed messages to systems that do not speak RocketMQ's protocol, and receives them.
//
//	peerload nats|redis|postgres setup  -addr HOST:PORT
//	peerload nats|redis|postgres send   -addr A -n 100000 -conns 4 -depth 64 [-rate R] [-delay MS | -due EPOCH_MS] [-spread MS]
//	peerload nats|redis|postgres recv   -addr A -n 100000 -idle 10
//	peerload nats|redis|postgres cancel -addr A -n 10000 -due EPOCH_MS    cancels the messages of that send
//
// Bodies and reports are those of wireload, whose files stats.go and tally.go are part of this program.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

type options struct {
	addr     string
	n        int
	base     int64
	size     int
	conns    int
	depth    int
	rate     int
	delayMs  int64
	dueMs    int64
	spreadMs int64
	idle     float64
	lingerMs int
}

// system is one kind of server.
type system interface {
	// setup creates what messages are stored in.
	setup() error
	// connect opens one connection of a sender.
	connect(o options) (connection, error)
	// receive adds messages to the tally until stop is closed; it reconnects after a connection loss.
	receive(o options, t *tally, stop <-chan struct{}) error
}

// connection sends and cancels messages; done is called once for each message, from any goroutine.
type connection interface {
	send(m message, done func(error))
	cancel(m message, done func(error))
	close()
}

// message is one delayed message.
type message struct {
	seq, dueMs int64
	body       []byte
}

type report interface{ print() }

func main() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT)
	go func() {
		<-signals
		interrupted.Store(true)
	}()
	if len(os.Args) < 3 {
		usage()
	}
	o := parse(os.Args[1]+" "+os.Args[2], os.Args[3:])
	systems := map[string]system{"nats": &natsSystem{o.addr}, "redis": &redisSystem{o.addr}, "postgres": &postgresSystem{o.addr}}
	s, exists := systems[os.Args[1]]
	if !exists {
		usage()
	}
	result, err := run(s, os.Args[2], o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "peerload:", err)
		os.Exit(1)
	}
	if result != nil {
		text, _ := json.Marshal(result)
		fmt.Println(string(text))
	}
}

func run(s system, mode string, o options) (report, error) {
	switch mode {
	case "setup":
		return nil, s.setup()
	case "send":
		return sendAll(s, o, connection.send)
	case "cancel":
		return sendAll(s, o, connection.cancel)
	case "recv":
		return recv(s, o)
	}
	usage()
	return nil, nil
}

// recv receives until all expected messages have arrived, or none arrives for a while.
func recv(s system, o options) (report, error) {
	t := newTally(o.n, o.base, o.size, o.idle)
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- s.receive(o, t, stop) }()
	for !t.finished() {
		select {
		case err := <-ended:
			return nil, fmt.Errorf("the receiver ended: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	time.Sleep(time.Duration(o.lingerMs) * time.Millisecond)
	close(stop)
	if err := <-ended; err != nil {
		return nil, err
	}
	return t.result(), nil
}

// take counts the messages of one response. These systems do not state when a message became available: lateness is that at the consumer.
func (t *tally) take(bodies ...[]byte) {
	nowMs := time.Now().UnixMilli()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = time.Now()
	for _, body := range bodies {
		t.judge(body, nowMs, nowMs)
	}
}

func parse(mode string, words []string) options {
	var o options
	f := flag.NewFlagSet("peerload "+mode, flag.ExitOnError)
	f.StringVar(&o.addr, "addr", "", "the server's `host:port`")
	f.IntVar(&o.n, "n", 10_000, "messages to send, or to expect")
	f.Int64Var(&o.base, "base", 0, "first sequence number")
	f.IntVar(&o.size, "size", 100, "bytes of a body, at least 16")
	f.IntVar(&o.conns, "conns", 4, "connections")
	f.IntVar(&o.depth, "depth", 64, "messages in flight per connection")
	f.IntVar(&o.rate, "rate", 0, "messages per second over all connections; 0: as fast as possible")
	f.Int64Var(&o.delayMs, "delay", 0, "due so many ms after it is sent")
	f.Int64Var(&o.dueMs, "due", 0, "due at this epoch ms")
	f.Int64Var(&o.spreadMs, "spread", 0, "spread the due times over so many ms")
	f.Float64Var(&o.idle, "idle", 10, "recv: give up after so many seconds without a message")
	f.IntVar(&o.lingerMs, "linger", 500, "recv: after the last expected message wait so many ms for duplicates")
	_ = f.Parse(words)
	if o.size < stampBytes || o.n < 1 || o.conns < 1 || o.depth < 1 {
		fmt.Fprintf(os.Stderr, "peerload: -size must be at least %d; -n, -conns and -depth at least 1\n", stampBytes)
		os.Exit(2)
	}
	return o
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: peerload nats|redis|postgres setup|send|recv|cancel [options]")
	os.Exit(2)
}

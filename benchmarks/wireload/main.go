// Wireload is a load generator for RocketMQ-compatible brokers that sends and receives raw frames.
//
//	wireload mk   -topic T -queues 4
//	wireload send -topic T -n 100000 -size 100 -conns 4 -depth 64 [-level 2 | -delay 5000 | -due EPOCH_MS]
//	wireload recv -topic T -n 100000 -idle 10 [-level-delay 5000]
//	wireload pop  -topic T -n 100000 -conns 4 -batch 32 [-invisible 60000]    acknowledges each message
//	wireload resend -level 18 -level-delay 7200000 -n 100000    sends a level's pending messages again, as timers
//
// A body starts with two big-endian numbers of 8 bytes: the sequence number and the delivery time (for levels: the
// time of the send). From these alone the receiver detects lost, duplicated, early and late messages. Wireload is
// optimised for low processor use, since on a small machine it competes with the broker.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

type options struct {
	addr        string
	topic       string
	queues      int
	n           int
	base        int64
	size        int
	conns       int
	depth       int
	rate        int
	code        int
	level       int
	delayMs     int64
	dueMs       int64
	spreadMs    int64
	property    string
	group       string
	batch       int
	idle        float64
	lingerMs    int
	levelDelay  int64
	invisibleMs int
	leave       bool
	brokerName  string
	fromEnd     bool
	counts      bool
	moments     bool
	json        bool
	accessKey   string
	secretKey   string
}

// report is the result of a mode, printed as text or as one JSON object.
type report interface{ print() }

func main() {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGINT)
	go func() {
		<-told
		interrupted.Store(true)
	}()
	if len(os.Args) < 2 {
		usage()
	}
	o := parse(os.Args[1], os.Args[2:])
	var found report
	var err error
	switch os.Args[1] {
	case "mk":
		err = makeTopic(o)
	case "send":
		found, err = send(o)
	case "recv":
		found, err = recv(o)
	case "pop":
		found, err = pop(o)
	case "resend":
		found, err = resend(o)
	default:
		usage()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "wireload:", err)
		os.Exit(1)
	}
	if found == nil {
		return
	}
	if o.json {
		text, _ := json.Marshal(found)
		fmt.Println(string(text))
	} else {
		found.print()
	}
}

func parse(mode string, words []string) options {
	var o options
	f := flag.NewFlagSet("wireload "+mode, flag.ExitOnError)
	f.StringVar(&o.addr, "addr", "127.0.0.1:10911", "the broker's `host:port`")
	f.StringVar(&o.topic, "topic", "bench", "")
	f.IntVar(&o.queues, "queues", 4, "queues of the topic")
	f.IntVar(&o.n, "n", 10_000, "messages to send, or to expect")
	f.Int64Var(&o.base, "base", 0, "first sequence number")
	f.IntVar(&o.size, "size", 100, "bytes of a body, at least 16")
	f.IntVar(&o.conns, "conns", 4, "connections that send")
	f.IntVar(&o.depth, "depth", 64, "requests in flight per connection")
	f.IntVar(&o.rate, "rate", 0, "messages per second over all connections; 0: as fast as possible")
	f.IntVar(&o.code, "code", 310, "request code: 310 (SEND_MESSAGE_V2) or 10 (SEND_MESSAGE)")
	f.IntVar(&o.level, "level", 0, "delay level")
	f.Int64Var(&o.delayMs, "delay", 0, "timer: due so many ms after it is sent")
	f.Int64Var(&o.dueMs, "due", 0, "timer: due at this epoch ms")
	f.Int64Var(&o.spreadMs, "spread", 0, "timer: spread the due times over so many ms")
	f.StringVar(&o.property, "timer-property", deliverMs, "timer: TIMER_DELIVER_MS, TIMER_DELAY_MS or TIMER_DELAY_SEC")
	f.StringVar(&o.group, "group", "g_wireload", "consumer group")
	f.IntVar(&o.batch, "batch", 1024, "messages asked for by one pull")
	f.Float64Var(&o.idle, "idle", 10, "recv: give up after so many seconds without a message")
	f.IntVar(&o.lingerMs, "linger", 500, "recv: after the last expected message wait so many ms for duplicates")
	f.Int64Var(&o.levelDelay, "level-delay", 0, "recv: ms of the level, to judge lateness")
	f.IntVar(&o.invisibleMs, "invisible", 60_000, "pop: invisible time in ms")
	f.BoolVar(&o.leave, "leave", false, "pop: acknowledge a message when it comes for the second time")
	f.StringVar(&o.brokerName, "broker-name", "broker-a", "pop: name of the broker, for handles")
	f.BoolVar(&o.fromEnd, "from-end", false, "recv: only what comes after the start")
	f.BoolVar(&o.counts, "counts", false, "recv: also tell how many messages were how late")
	f.BoolVar(&o.moments, "moments", false, "recv: also tell when messages were stored, and how late each was")
	f.StringVar(&o.accessKey, "access-key", "", "account that signs the requests")
	f.StringVar(&o.secretKey, "secret-key", "", "its secret")
	f.BoolVar(&useTLS, "tls", false, "connect by TLS")
	f.BoolVar(&o.json, "json", false, "print the result as one JSON object")
	_ = f.Parse(words)
	if o.accessKey != "" {
		credentials = newSigner(o.accessKey, o.secretKey)
	}
	if o.size < stampBytes || o.n < 1 || o.conns < 1 || o.depth < 1 || o.queues < 1 {
		fmt.Fprintf(os.Stderr, "wireload: -size must be at least %d; -n, -conns, -depth and -queues at least 1\n", stampBytes)
		os.Exit(2)
	}
	return o
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: wireload mk|send|recv|pop|resend [options]; run wireload send -h for the options")
	os.Exit(2)
}

// Manyload drives one broker with many topics, consumer groups and connections at once, as many small applications do.
//
//	manyload -addr HOST:PORT -topics 10000 -groups 2000 -conns 5000 -producers 500 -rate 100000 -seconds 3600
//
// The topics exist. Each connection is one client: producers send level messages, each with its own request; consumers
// send heartbeats with their subscriptions, pull every queue that is theirs by long polling, commit offsets and ask for
// the members of their group, all at the intervals of Apache's Java client. Each topic belongs to one group, and the
// queues of a topic are divided evenly among the members.
//
// With -together, a producer sends so many single messages to one queue at a time, as an application does that sends
// asynchronously; RocketMQ has no batches with levels. With -rates, each window has its own rate; SIGINT ends the sends.
//
// It prints one JSON object for each window, and one at the end. Bodies are those of wireload, whose files frame.go,
// dial.go, sign.go, record.go, stats.go and tally.go are part of this program.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const dialTimeout = 30 * time.Second

// levelDelaysMs are the delays of levels 1 to 5.
var levelDelaysMs = [...]int64{1_000, 5_000, 10_000, 30_000, 60_000}

type options struct {
	addr      string
	prefix    string
	topics    int
	queues    int
	groups    int
	conns     int
	producers int
	rate      int
	burst     int
	skew      float64
	size      int
	batch     int
	together  int
	levels    int
	rates     []int // of windows, one after the other; empty: rate all the time
	seconds   int
	windowS   int
	idleS     int
}

func main() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT)
	go func() {
		<-signals
		interrupted.Store(true)
	}()
	o := parse(os.Args[1:])
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "manyload:", err)
		os.Exit(1)
	}
}

func parse(words []string) *options {
	o := &options{}
	f := flag.NewFlagSet("manyload", flag.ExitOnError)
	f.StringVar(&o.addr, "addr", "127.0.0.1:10911", "the broker's `host:port`")
	f.StringVar(&o.prefix, "prefix", "many", "start of the names of topics and groups")
	f.IntVar(&o.topics, "topics", 100, "")
	f.IntVar(&o.queues, "queues", 4, "queues of each topic")
	f.IntVar(&o.groups, "groups", 20, "consumer groups")
	f.IntVar(&o.conns, "conns", 50, "connections of producers and consumers")
	f.IntVar(&o.producers, "producers", 10, "connections that send")
	f.IntVar(&o.rate, "rate", 1_000, "messages per second over all connections")
	f.IntVar(&o.burst, "burst", 16, "messages that a producer sends at a time")
	f.Float64Var(&o.skew, "skew", 1, "exponent of the messages per topic: topic k gets k^-skew; 0: all the same")
	f.IntVar(&o.size, "size", 100, "bytes of a body, at least 16")
	f.IntVar(&o.batch, "batch", 32, "maximum messages of one pull")
	f.IntVar(&o.together, "together", 1, "consecutive messages of a producer with the same queue and level")
	f.IntVar(&o.levels, "levels", len(levelDelaysMs), "number of levels, from level 1 on")
	rates := f.String("rates", "", "messages per second in each window, separated by commas, in place of rate and seconds")
	f.IntVar(&o.seconds, "seconds", 60, "time in which messages are sent")
	f.IntVar(&o.windowS, "window", 60, "seconds of one report")
	f.IntVar(&o.idleS, "idle", 30, "give up after so many seconds without a message after the last one is due")
	_ = f.Parse(words)
	for _, word := range strings.FieldsFunc(*rates, func(r rune) bool { return r == ',' }) {
		rate, err := strconv.Atoi(word)
		if err != nil {
			fmt.Fprintln(os.Stderr, "manyload: -rates:", err)
			os.Exit(2)
		}
		o.rates = append(o.rates, rate)
	}
	if len(o.rates) > 0 {
		o.seconds = len(o.rates) * o.windowS
	}
	o.burst = max(o.burst, o.together)
	if o.levels < 1 || o.levels > len(levelDelaysMs) || o.together < 1 || o.together > inFlightMax {
		fmt.Fprintln(os.Stderr, "manyload: levels are 1 to 5, and together is 1 to 4096")
		os.Exit(2)
	}
	if o.size < stampBytes || o.producers < 1 || o.conns-o.producers < o.groups || o.topics < o.groups || o.groups < 1 {
		fmt.Fprintln(os.Stderr, "manyload: each group needs a connection and a topic, and one connection must send")
		os.Exit(2)
	}
	return o
}

// run connects the clients, sends for the given time, and waits for the last messages.
func run(o *options) error {
	counts := newCounts()
	connected := time.Now()
	members, err := connectMembers(o, counts)
	if err != nil {
		return err
	}
	producers, err := connectProducers(o, counts)
	if err != nil {
		return err
	}
	emit(map[string]any{"event": "connected", "seconds": time.Since(connected).Seconds(),
		"connections": len(members) + len(producers), "queues": counts.pulling.Load()})
	keepMembers(members)
	keepProducers(producers)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		pace(o, counts, producers)
	}()
	ticker := time.NewTicker(time.Duration(o.windowS) * time.Second)
	for sending := true; sending; {
		select {
		case <-ticker.C:
			emit(counts.window())
		case <-ended:
			sending = false
		}
	}
	drained := time.Now()
	for !counts.finished(o) {
		time.Sleep(100 * time.Millisecond)
	}
	time.Sleep(time.Second) // duplicates
	if last := counts.window(); last.Received > 0 {
		emit(last)
	}
	emit(counts.final(time.Since(drained)))
	return nil
}

func emit(value any) {
	text, _ := json.Marshal(value)
	fmt.Println(string(text))
}

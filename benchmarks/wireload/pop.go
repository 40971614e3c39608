package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	popPollMs = 1000
	popHandle = "POP_CK\x01" // property of a message of a retry topic
	atQueue   = 12           // in a record
	atOffset  = 20
)

type popReport struct {
	Popped     int     `json:"popped"`
	Acked      int     `json:"acked"`
	Rejected   int     `json:"rejected"`
	FirstBad   string  `json:"first_rejection,omitempty"`
	Distinct   int     `json:"distinct"`
	Duplicates int     `json:"duplicates"`
	Lost       int     `json:"lost"`
	Corrupt    int     `json:"corrupt"`
	Seconds    float64 `json:"seconds"` // to the last acknowledgement
	Rate       float64 `json:"per_second"`
	PopMs      spread  `json:"pop_ms"`
	AckMs      spread  `json:"ack_ms"`
	ClientMs   spread  `json:"late_at_client_ms"`
	VisibleMs  spread  `json:"late_visible_ms"` // with -leave: second pop after the end of the invisible time
}

func (r *popReport) print() {
	fmt.Printf("popped %d, acknowledged %d in %.2f s: %.0f msg/s; lost %d, duplicates %d, corrupt %d, rejected %d %s\n",
		r.Popped, r.Acked, r.Seconds, r.Rate, r.Lost, r.Duplicates, r.Corrupt, r.Rejected, r.FirstBad)
	r.PopMs.print("pop latency")
	r.AckMs.print("ack latency")
	r.ClientMs.print("lateness at client")
	r.VisibleMs.print("visible again, lateness")
}

// popper is one connection that repeatedly pops messages and acknowledges each with a separate request.
type popper struct {
	all      *tally
	o        options
	out      []byte
	opaque   int // even for pops, odd for acknowledgements
	sentUs   map[int]int64
	popsUs   []int32
	acksUs   []int32
	acked    int
	rejected int
	firstBad string
	lastAck  time.Time
	left     *leftMessages // nil: every message is acknowledged
}

// leftMessages are popped but not acknowledged messages; another connection can receive their redelivery.
type leftMessages struct {
	mu     sync.Mutex
	until  map[int64]int64 // by sequence number: end of the invisible time, in epoch ms
	lateMs []int32
}

// leaves returns whether a message is delivered for the first time; for a redelivery it records the lateness.
func (l *leftMessages) leaves(seq, visibleMs int64, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	before, known := l.until[seq]
	if known {
		l.lateMs = append(l.lateMs, clamp(now.UnixMilli()-before))
		return false
	}
	l.until[seq] = visibleMs
	return true
}

// pop receives all expected messages over all connections, and stops early if none arrives for a while.
func pop(o options) (report, error) {
	all := newTally(o.n, o.base, o.size, o.idle)
	start := time.Now()
	var left *leftMessages
	if o.leave {
		left = &leftMessages{until: map[int64]int64{}}
		all.twice = true
	}
	poppers := make([]*popper, o.conns)
	failed := make([]error, o.conns)
	var group sync.WaitGroup
	for i := range poppers {
		poppers[i] = &popper{all: all, o: o, sentUs: map[int]int64{}, lastAck: start, left: left}
		group.Add(1)
		go func() {
			defer group.Done()
			failed[i] = poppers[i].run()
		}()
	}
	group.Wait()
	for _, err := range failed {
		if err != nil {
			return nil, err
		}
	}
	return popSummary(all, poppers, start), nil
}

func popSummary(all *tally, poppers []*popper, start time.Time) *popReport {
	found := all.report
	r := &popReport{
		Popped: found.Received, Distinct: found.Distinct, Duplicates: found.Duplicates, Corrupt: found.Corrupt,
		Lost: all.n - found.Distinct, ClientMs: spreadOf(all.clientMs, 1),
	}
	var pops, acks []int32
	last := start
	for _, p := range poppers {
		pops, acks = append(pops, p.popsUs...), append(acks, p.acksUs...)
		r.Acked += p.acked
		r.Rejected += p.rejected
		if r.FirstBad == "" {
			r.FirstBad = p.firstBad
		}
		if p.lastAck.After(last) {
			last = p.lastAck
		}
	}
	if o := poppers[0].left; o != nil {
		r.VisibleMs = spreadOf(o.lateMs, 1)
	}
	r.Seconds = last.Sub(start).Seconds()
	r.Rate = float64(r.Acked) / max(r.Seconds, .001)
	r.PopMs, r.AckMs = spreadOf(pops, .001), spreadOf(acks, .001)
	return r
}

func (p *popper) run() error {
	c, err := dial(p.o.addr)
	if err != nil {
		return err
	}
	defer c.Close()
	in := bufio.NewReaderSize(c, readBufferBytes)
	var buffer []byte
	p.ask(time.Now())
	for !p.all.finished() || len(p.sentUs) > 1 { // one pop is always in flight
		if err := p.write(c); err != nil {
			return err
		}
		header, body, err := readFrame(in, &buffer)
		if err != nil {
			return err
		}
		if err := p.answered(header, body); err != nil {
			return err
		}
	}
	return nil
}

func (p *popper) write(c net.Conn) error {
	if len(p.out) == 0 {
		return nil
	}
	_, err := c.Write(p.out)
	p.out = p.out[:0]
	return err
}

// ask appends a pop request to the write buffer.
func (p *popper) ask(now time.Time) {
	p.opaque += 2
	p.sentUs[p.opaque] = now.UnixMicro()
	p.out = appendFrame(p.out, codePop, p.opaque, ext("consumerGroup", p.o.group, "topic", p.o.topic, "queueId", "-1",
		"maxMsgNums", strconv.Itoa(min(p.o.batch, 32)), "invisibleTime", strconv.Itoa(p.o.invisibleMs),
		"pollTime", strconv.Itoa(popPollMs), "bornTime", strconv.FormatInt(now.UnixMilli(), 10), "initMode", "0"), nil)
}

// answered handles the response to a pop or to an acknowledgement.
func (p *popper) answered(header, body []byte) error {
	opaque, _ := number(header, "opaque")
	code, _ := number(header, "code")
	now := time.Now()
	took := int32(now.UnixMicro() - p.sentUs[int(opaque)])
	delete(p.sentUs, int(opaque))
	if opaque%2 == 1 {
		p.acksUs = append(p.acksUs, took)
		p.lastAck = now
		if code == answerOK {
			p.acked++
		} else {
			p.reject(header)
		}
		return nil
	}
	if code == answerOK {
		p.popsUs = append(p.popsUs, took)
		p.all.take(body)
		if err := p.acknowledge(header, body, now); err != nil {
			return err
		}
	} else if code != answerPollTimeout {
		p.reject(header)
		time.Sleep(retryPause)
	}
	p.ask(now)
	return nil
}

func (p *popper) reject(header []byte) {
	p.rejected++
	if p.firstBad == "" {
		p.firstBad = string(header)
	}
}

// acknowledge appends one request for each message, with a handle built as clients build it.
func (p *popper) acknowledge(header, body []byte, now time.Time) error {
	starts := map[string]string{} // by queue
	for _, entry := range strings.Split(string(field(header, "startOffsetInfo")), ";") {
		if parts := strings.Split(entry, " "); len(parts) == 3 && parts[0] == "0" {
			starts[parts[1]] = parts[2]
		}
	}
	popMs, _ := number(header, "popTime")
	popped := fmt.Sprintf("%d %s %s 0 %s", popMs, field(header, "invisibleTime"), field(header, "reviveQid"),
		p.o.brokerName)
	for len(body) > 0 {
		m, rest, err := nextRecord(body)
		if err != nil {
			return err
		}
		queue := strconv.Itoa(int(binary.BigEndian.Uint32(body[atQueue:])))
		offset := strconv.FormatInt(int64(binary.BigEndian.Uint64(body[atOffset:])), 10)
		body = rest
		if p.left != nil && p.left.leaves(m.seq, popMs+int64(p.o.invisibleMs), now) {
			continue
		}
		topic, handle := p.named(m)
		if handle == "" {
			start, known := starts[queue]
			if !known {
				return fmt.Errorf("no start offset of queue %s in %s", queue, header)
			}
			handle = start + " " + popped + " " + queue + " " + offset
		}
		p.opaque += 2
		p.sentUs[p.opaque+1] = now.UnixMicro()
		p.out = appendFrame(p.out, codeAck, p.opaque+1, ext("consumerGroup", p.o.group, "topic", topic,
			"queueId", queue, "offset", offset, "extraInfo", handle), nil)
	}
	return nil
}

// named returns the topic of a message, and the handle that the broker adds to messages of a retry topic.
func (p *popper) named(m record) (topic, handle string) {
	at := bytes.Index(m.properties, []byte(popHandle))
	if at < 0 {
		return p.o.topic, ""
	}
	value, _, _ := bytes.Cut(m.properties[at+len(popHandle):], []byte{2})
	handle = string(value)
	switch strings.Split(handle, " ")[4] {
	case "1":
		return "%RETRY%" + p.o.group + "_" + p.o.topic, handle
	case "2":
		return "%RETRY%" + p.o.group + "+" + p.o.topic, handle
	}
	return p.o.topic, handle
}

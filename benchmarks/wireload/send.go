package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	deliverMs = "TIMER_DELIVER_MS"
	delayMs   = "TIMER_DELAY_MS"
	delaySec  = "TIMER_DELAY_SEC"

	writeBufferBytes = 256 << 10
	readBufferBytes  = 1 << 20

	answersPause = 2 * time.Second // wait of an interrupted sender for the last responses
)

// sender sends its share of the messages over one connection.
type sender struct {
	o        options
	first    int64 // sequence number
	count    int
	limit    atomic.Int64 // number of messages to send, 0: count
	share    float64      // messages per second, 0: no limit
	start    time.Time
	sentUs   []int64 // by opaque
	acksUs   []int32
	rejected int
	firstBad string
	err      error
}

// send distributes the messages over the connections and waits for all responses.
func send(o options) (report, error) {
	start := time.Now()
	senders := make([]*sender, o.conns)
	next := o.base
	for i := range senders {
		count := o.n / o.conns
		if i < o.n%o.conns {
			count++
		}
		senders[i] = &sender{o: o, first: next, count: count, share: float64(o.rate) / float64(o.conns), start: start}
		next += int64(count)
	}
	var all sync.WaitGroup
	for _, s := range senders {
		all.Add(1)
		go func(s *sender) {
			defer all.Done()
			s.err = s.run()
		}(s)
	}
	all.Wait()
	return summary(senders, start)
}

func summary(senders []*sender, start time.Time) (report, error) {
	end := time.Now()
	r := &sendReport{Seconds: end.Sub(start).Seconds(), StartMs: start.UnixMilli(), EndMs: end.UnixMilli()}
	var acks []int32
	for _, s := range senders {
		if s.err != nil {
			return nil, s.err
		}
		acks = append(acks, s.acksUs...)
		r.Rejected += s.rejected
		if r.FirstBad == "" {
			r.FirstBad = s.firstBad
		}
	}
	r.Sent = len(acks) - r.Rejected
	r.Rate = float64(r.Sent) / r.Seconds
	r.AckMs = spreadOf(acks, .001)
	return r, nil
}

func (s *sender) run() error {
	c, err := dial(s.o.addr)
	if err != nil {
		return err
	}
	defer c.Close()
	s.sentUs = make([]int64, s.count)
	s.acksUs = make([]int32, 0, s.count)
	credits := make(chan int, s.count+1) // numbers of received responses
	failed := make(chan error, 1)
	go func() { failed <- s.read(c, credits) }()
	if err := s.write(c, credits, failed); err != nil {
		return err
	}
	return <-failed
}

// write sends all frames, with at most depth requests in flight, and at most at the rate of share.
func (s *sender) write(c net.Conn, credits chan int, failed chan error) error {
	w := bufio.NewWriterSize(c, writeBufferBytes)
	m := newMessage(s.o)
	credit := s.o.depth
	for i := 0; i < s.count; i++ {
		if interrupted.Load() {
			s.limit.Store(int64(max(i, 1)))
			_ = c.SetReadDeadline(time.Now().Add(answersPause))
			break
		}
		if err := s.pace(w, i); err != nil {
			return err
		}
		for credit == 0 {
			if err := w.Flush(); err != nil {
				return err
			}
			select {
			case more := <-credits:
				credit += more
			case err := <-failed:
				return fmt.Errorf("connection closed before all responses arrived: %v", err)
			}
		}
		credit--
		now := time.Now()
		s.sentUs[i] = now.UnixMicro()
		if _, err := w.Write(m.frame(i, s.first+int64(i), now.UnixMilli())); err != nil {
			return err
		}
	}
	return w.Flush()
}

// pace waits until the send time of message i.
func (s *sender) pace(w *bufio.Writer, i int) error {
	if s.share == 0 {
		return nil
	}
	at := s.start.Add(time.Duration(float64(i) / s.share * float64(time.Second)))
	wait := time.Until(at)
	if wait <= 0 {
		return nil
	}
	if err := w.Flush(); err != nil {
		return err
	}
	time.Sleep(wait)
	return nil
}

// read receives the responses; it returns credits in groups, whenever its buffer is empty.
func (s *sender) read(c net.Conn, credits chan int) error {
	r := bufio.NewReaderSize(c, readBufferBytes)
	var buffer []byte
	bunch := 0
	for range s.sentUs {
		header, _, err := readFrame(r, &buffer)
		if err != nil && int64(len(s.acksUs)) == s.limit.Load() {
			return nil
		}
		if err != nil {
			return err
		}
		opaque, known := number(header, "opaque")
		if !known || opaque < 0 || opaque >= int64(s.count) {
			return fmt.Errorf("response without a matching request: %s", header)
		}
		s.acksUs = append(s.acksUs, clamp(time.Now().UnixMicro()-s.sentUs[opaque]))
		if code, _ := number(header, "code"); code != answerOK {
			s.rejected++
			if s.firstBad == "" {
				s.firstBad = string(header)
			}
		}
		if bunch++; r.Buffered() == 0 || bunch >= s.o.depth {
			credits <- bunch
			bunch = 0
		}
	}
	return nil
}

// message encodes frames; parts common to all frames are encoded once.
type message struct {
	o     options
	body  []byte
	ext   []byte
	out   []byte
	props []byte
	names [4]string // keys of queueId, bornTimestamp, properties in this request code, and of the rest
}

func newMessage(o options) *message {
	m := &message{o: o, body: bytes.Repeat([]byte{'x'}, o.size)}
	if o.code == codeSend {
		m.names = [4]string{"queueId", "bornTimestamp", "properties", string(ext("producerGroup", "p_wireload",
			"topic", o.topic, "defaultTopic", "TBW102", "defaultTopicQueueNums", "4", "sysFlag", "0", "flag", "0",
			"reconsumeTimes", "0", "unitMode", "false", "batch", "false"))}
	} else {
		m.names = [4]string{"e", "g", "i", string(ext("a", "p_wireload", "b", o.topic, "c", "TBW102", "d", "4", "f", "0",
			"h", "0", "j", "0", "k", "false", "m", "false"))}
	}
	return m
}

// frame returns the frame of one message; the next call overwrites it.
func (m *message) frame(opaque int, seq, nowMs int64) []byte {
	due := m.due(seq, nowMs)
	binary.BigEndian.PutUint64(m.body, uint64(seq))
	binary.BigEndian.PutUint64(m.body[8:], uint64(due))
	m.properties(seq, nowMs, due)
	e := append(m.ext[:0], m.names[3]...)
	e = append(e, `,"`+m.names[0]+`":"`...)
	e = strconv.AppendInt(e, seq%int64(m.o.queues), 10)
	e = append(e, `","`+m.names[1]+`":"`...)
	e = strconv.AppendInt(e, nowMs, 10)
	e = append(e, `","`+m.names[2]+`":"`...)
	e = append(e, m.props...)
	m.ext = append(e, '"')
	m.out = appendFrame(m.out[:0], m.o.code, opaque, m.ext, m.body)
	return m.out
}

// due is the time in the body: the delivery time of a timer, or the send time of any other message.
func (m *message) due(seq, nowMs int64) int64 {
	due := nowMs + m.o.delayMs
	if m.o.dueMs > 0 {
		due = m.o.dueMs
	}
	if m.o.spreadMs > 0 {
		due += seq * 7919 % m.o.spreadMs
	}
	return due
}

// properties are JSON-escaped; the separators are the characters 1 and 2.
func (m *message) properties(seq, nowMs, due int64) {
	p := append(m.props[:0], `UNIQ_KEY\u00017F000001`...)
	p = appendHex(p, uint64(uint32(nowMs)), 8)
	p = appendHex(p, uint64(seq), 16)
	p = append(p, `\u0002WAIT\u0001true\u0002`...)
	name, value := "", int64(0)
	switch {
	case m.o.level > 0:
		name, value = "DELAY", int64(m.o.level)
	case m.o.dueMs == 0 && m.o.delayMs == 0:
	case m.o.property == delayMs:
		name, value = delayMs, due-nowMs
	case m.o.property == delaySec:
		name, value = delaySec, (due-nowMs)/1000
	default:
		name, value = deliverMs, due
	}
	if name != "" {
		p = append(append(p, name...), `\u0001`...)
		p = append(strconv.AppendInt(p, value, 10), `\u0002`...)
	}
	m.props = p
}

func appendHex(to []byte, value uint64, digits int) []byte {
	const hex = "0123456789ABCDEF"
	for shift := 4 * (digits - 1); shift >= 0; shift -= 4 {
		to = append(to, hex[value>>shift&15])
	}
	return to
}

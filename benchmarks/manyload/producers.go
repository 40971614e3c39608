package main

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand"
	"sort"
	"strconv"
	"sync/atomic"
	"time"
)

const (
	inFlightMax  = 4_096 // of one producer, a power of 2
	allFlightMax = 60_000
	paceEvery    = 5 * time.Millisecond
)

// producer sends messages.
type producer struct {
	*client
	sentUs [inFlightMax]int64 // by opaque
	next   int                // opaque
	flying atomic.Int64
}

func connectProducers(o *options, all *counts) ([]*producer, error) {
	producers := make([]*producer, o.producers)
	err := together(len(producers), func(i int) error {
		c, err := connect(o, all)
		if err != nil {
			return err
		}
		p := &producer{client: c}
		p.heartbeat = heartbeatFrame(`{"clientID":"producer-` + pad(i) + `","producerDataSet":[{"groupName":"p-` +
			o.prefix + `"}],"consumerDataSet":[]}`)
		producers[i] = p
		return p.register()
	})
	if err != nil {
		return nil, err
	}
	for _, p := range producers {
		go p.run()
	}
	return producers, nil
}

// run receives the responses until the connection is lost.
func (p *producer) run() {
	for {
		header, _, err := readFrame(p.in, &p.buffer)
		if err != nil {
			p.all.failed("producer: " + err.Error())
			return
		}
		opaque, _ := number(header, "opaque")
		if opaque >= otherOpaque || isRequest(header) {
			continue
		}
		p.all.ack.add((time.Now().UnixMicro() - p.sentUs[opaque%inFlightMax]) / 1_000)
		p.flying.Add(-1)
		if code, _ := number(header, "code"); code == answerOK {
			p.all.accepted.Add(1)
		} else {
			p.all.rejected.Add(1)
			p.all.failed(string(header))
		}
	}
}

func keepProducers(producers []*producer) {
	go regularly(len(producers), heartbeatEvery, func(i int) {
		producers[i].write(producers[i].heartbeat)
		producers[i].all.heartbeats.Add(1)
	})
}

// pace sends at the rate of the options: the producers take turns, each sends a burst.
func pace(o *options, all *counts, producers []*producer) {
	m := newMessages(o)
	start := time.Now()
	due, turn := 0.0, 0
	for elapsed := time.Duration(0); elapsed < time.Duration(o.seconds)*time.Second && !interrupted.Load(); {
		time.Sleep(paceEvery)
		elapsed = time.Since(start)
		for due+float64(o.burst) <= o.target(elapsed.Seconds()) {
			p := producers[turn%len(producers)]
			turn++
			due += float64(o.burst)
			flying := all.sent.Load() - all.accepted.Load() - all.rejected.Load()
			if flying+int64(o.burst) > allFlightMax || p.flying.Load()+int64(o.burst) > inFlightMax {
				all.heldBack.Add(int64(o.burst))
				continue
			}
			p.send(m, o.burst)
		}
	}
}

// target returns the number of messages to send in the first seconds.
func (o *options) target(seconds float64) float64 {
	if len(o.rates) == 0 {
		return seconds * float64(o.rate)
	}
	total := 0.0
	for i, rate := range o.rates {
		total += float64(rate) * max(0, min(seconds-float64(i*o.windowS), float64(o.windowS)))
	}
	return total
}

func (p *producer) send(m *messages, count int) {
	now := time.Now()
	var frames []byte
	for range count {
		p.sentUs[p.next%inFlightMax] = now.UnixMicro()
		frames = m.append(frames, p.next%otherOpaque, now.UnixMilli())
		p.next++
	}
	p.flying.Add(int64(count))
	p.all.sent.Add(int64(count))
	p.all.lastDueMs.Store(now.UnixMilli() + levelDelaysMs[m.o.levels-1])
	p.write(frames)
}

// messages encodes level messages for random topics.
type messages struct {
	o     *options
	until []float64 // cumulated shares of the topics, by rank
	turn  []int     // next queue, by topic
	left  int       // messages until the next queue
	topic int
	queue int
	level int
	seq   int64
	body  []byte
	ext   []byte
}

func newMessages(o *options) *messages {
	m := &messages{o: o, body: bytes.Repeat([]byte{'x'}, o.size), turn: make([]int, o.topics)}
	total := 0.0
	for rank := range o.topics {
		total += math.Pow(float64(rank+1), -o.skew)
		m.until = append(m.until, total)
	}
	return m
}

// next selects topic, queue and level of the following messages; topics that are neighbours in rank belong to different
// groups.
func (m *messages) next() {
	if m.left > 0 {
		m.left--
		return
	}
	value := rand.Float64() * m.until[len(m.until)-1]
	m.topic = sort.SearchFloat64s(m.until, value) % m.o.topics
	m.queue = m.turn[m.topic] % m.o.queues
	m.turn[m.topic]++
	m.level = (m.level + 1) % m.o.levels
	m.left = m.o.together - 1
}

// append adds the request of the next message.
func (m *messages) append(to []byte, opaque int, nowMs int64) []byte {
	m.next()
	seq := m.seq
	m.seq++
	binary.BigEndian.PutUint64(m.body, uint64(seq))
	binary.BigEndian.PutUint64(m.body[8:], uint64(nowMs+levelDelaysMs[m.level]))
	e := append(m.ext[:0], `"a":"p-`+m.o.prefix+`","b":"`+topicName(m.o, m.topic)+
		`","c":"TBW102","d":"4","f":"0","h":"0","j":"0","k":"false","m":"false","e":"`...)
	e = strconv.AppendInt(e, int64(m.queue), 10)
	e = append(e, `","g":"`...)
	e = strconv.AppendInt(e, nowMs, 10)
	e = append(e, `","i":"UNIQ_KEY\u00017F000001`...)
	e = strconv.AppendInt(append(e, "000000000000"...), 1_000_000_000_000+seq, 10)
	e = append(e, `\u0002WAIT\u0001true\u0002DELAY\u0001`...)
	e = strconv.AppendInt(e, int64(m.level+1), 10)
	m.ext = append(e, `\u0002"`...)
	return appendFrame(to, codeSendV2, opaque, m.ext, m.body)
}

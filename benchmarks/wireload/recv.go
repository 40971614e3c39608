package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"
)

const (
	pollPause   = 20 * time.Millisecond
	retryPause  = 50 * time.Millisecond
	suspendMs   = "15000"
	pullSysFlag = "6" // suspend; the request has a subscription
)

type recvReport struct {
	Received   int        `json:"received"`
	Distinct   int        `json:"distinct"`
	Expected   int        `json:"expected"`
	Lost       int        `json:"lost"`
	Duplicates int        `json:"duplicates"`
	Early      int        `json:"early"`
	Corrupt    int        `json:"corrupt"`
	Foreign    int        `json:"foreign"` // unexpected sequence numbers
	FirstMs    int64      `json:"first_store_ms"`
	LastMs     int64      `json:"last_store_ms"`
	Rate       float64    `json:"per_second"` // between the first and the last store time
	BestSecond int        `json:"best_second"`
	StoreMs    spread     `json:"late_at_store_ms"`
	ClientMs   spread     `json:"late_at_client_ms"`
	LateCounts [][2]int32 `json:"late_counts,omitempty"` // lateness at the store in ms, messages
	Moments    [][3]int64 `json:"moments,omitempty"`     // stored at (epoch ms), late by (ms), messages
}

func (r *recvReport) print() {
	fmt.Printf("received %d, distinct %d of %d: lost %d, duplicates %d, early %d, corrupt %d, foreign %d\n", r.Received,
		r.Distinct, r.Expected, r.Lost, r.Duplicates, r.Early, r.Corrupt, r.Foreign)
	fmt.Printf("stored within %.2f s: %.0f msg/s, best second %d\n", float64(r.LastMs-r.FirstMs)/1000, r.Rate, r.BestSecond)
	r.StoreMs.print("lateness at store")
	r.ClientMs.print("lateness at client")
}

// receiver counts and checks the messages of all queues.
type receiver struct {
	o        options
	mu       sync.Mutex
	seen     []uint8 // deliveries per sequence number, at most 255
	filler   []byte
	storeMs  []int32
	clientMs []int32
	seconds  map[int64]int
	moments  map[[2]int64]int64
	last     time.Time
	twice    bool // each message must be delivered twice
	report   recvReport
}

// recv pulls every queue until all expected messages have arrived, or none arrives for a while. It reconnects after a
// connection loss, so that the broker can be killed and restarted meanwhile.
func recv(o options) (report, error) {
	r := &receiver{
		o: o, seen: make([]uint8, o.n), filler: bytes.Repeat([]byte{'x'}, o.size), seconds: map[int64]int{},
		moments: map[[2]int64]int64{}, last: time.Now(),
	}
	stop := make(chan struct{})
	var all sync.WaitGroup
	for queue := 0; queue < o.queues; queue++ {
		offset := int64(0)
		if o.fromEnd {
			var err error
			if offset, err = maxOffset(o, queue); err != nil {
				return nil, err
			}
		}
		all.Add(1)
		go func(queue int) {
			defer all.Done()
			r.drain(queue, offset, stop)
		}(queue)
	}
	for !r.finished() {
		time.Sleep(pollPause)
	}
	time.Sleep(time.Duration(o.lingerMs) * time.Millisecond)
	close(stop)
	all.Wait()
	return r.result(), nil
}

func (r *receiver) finished() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	wanted := r.o.n
	if r.twice {
		wanted *= 2
	}
	return interrupted.Load() || r.report.Distinct >= r.o.n && r.report.Received >= wanted || time.Since(r.last).Seconds() > r.o.idle
}

func (r *receiver) result() *recvReport {
	found := &r.report
	found.Expected = r.o.n
	found.Lost = r.o.n - found.Distinct
	found.StoreMs = spreadOf(r.storeMs, 1)
	if r.o.counts {
		found.LateCounts = countsOf(r.storeMs)
	}
	for at, count := range r.moments {
		found.Moments = append(found.Moments, [3]int64{at[0], at[1], count})
	}
	found.ClientMs = spreadOf(r.clientMs, 1)
	for _, count := range r.seconds {
		found.BestSecond = max(found.BestSecond, count)
	}
	if ms := found.LastMs - found.FirstMs; ms > 0 {
		found.Rate = float64(found.Received) / float64(ms) * 1000
	}
	return found
}

// drain pulls one queue until it is stopped.
func (r *receiver) drain(queue int, offset int64, stop chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		c, err := dial(r.o.addr)
		if err == nil {
			ended := make(chan struct{})
			go func() { // the broker can hold a pull for long; closing the connection ends it
				select {
				case <-stop:
				case <-ended:
				}
				c.Close()
			}()
			offset = r.pull(c, queue, offset)
			close(ended)
		}
		time.Sleep(retryPause)
	}
}

// pull reads one queue over one connection until the connection is lost, and returns the next offset.
func (r *receiver) pull(c net.Conn, queue int, offset int64) int64 {
	in := bufio.NewReaderSize(c, readBufferBytes)
	var buffer, out []byte
	for opaque := 0; ; opaque++ {
		fields := ext("consumerGroup", r.o.group, "topic", r.o.topic, "queueId", strconv.Itoa(queue),
			"queueOffset", strconv.FormatInt(offset, 10), "maxMsgNums", strconv.Itoa(r.o.batch), "sysFlag", pullSysFlag,
			"commitOffset", "0", "suspendTimeoutMillis", suspendMs, "subscription", "*", "subVersion", "0",
			"expressionType", "TAG")
		out = appendFrame(out[:0], codePull, opaque, fields, nil)
		if _, err := c.Write(out); err != nil {
			return offset
		}
		header, body, err := readFrame(in, &buffer)
		if err != nil {
			return offset
		}
		code, _ := number(header, "code")
		if next, known := number(header, "nextBeginOffset"); known {
			offset = next
		} else if code != answerOK {
			time.Sleep(retryPause) // the topic or the group does not exist yet
		}
		if code == answerOK {
			r.take(body)
		}
	}
}

// take checks and counts the messages of one response.
func (r *receiver) take(records []byte) {
	nowMs := time.Now().UnixMilli()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = time.Now()
	for len(records) > 0 {
		record, rest, err := nextRecord(records)
		if err != nil {
			r.report.Corrupt++
			return
		}
		records = rest
		r.judge(record, nowMs)
	}
}

func (r *receiver) judge(m record, nowMs int64) {
	if len(m.body) != r.o.size || !bytes.Equal(m.body[stampBytes:], r.filler[stampBytes:]) {
		r.report.Corrupt++
		return
	}
	index := m.seq - r.o.base
	if index < 0 || index >= int64(len(r.seen)) {
		r.report.Foreign++
		return
	}
	r.report.Received++
	if r.seen[index] == 0 {
		r.report.Distinct++
	} else {
		r.report.Duplicates++
	}
	r.seen[index] = min(r.seen[index], 254) + 1
	due := m.due + r.o.levelDelay
	if m.storeMs < due {
		r.report.Early++
	}
	r.storeMs = append(r.storeMs, clamp(m.storeMs-due))
	r.clientMs = append(r.clientMs, clamp(nowMs-due))
	r.seconds[m.storeMs/1000]++
	if r.o.moments {
		r.moments[[2]int64{m.storeMs, m.storeMs - due}]++
	}
	if r.report.FirstMs == 0 || m.storeMs < r.report.FirstMs {
		r.report.FirstMs = m.storeMs
	}
	r.report.LastMs = max(r.report.LastMs, m.storeMs)
}

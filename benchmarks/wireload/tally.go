package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const stampBytes = 16 // sequence number, due time

// interrupted is set by SIGINT: send and recv then stop cleanly and print their reports.
var interrupted atomic.Bool

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

// tally counts and checks received messages.
type tally struct {
	n        int // expected messages
	base     int64
	size     int
	idle     float64 // seconds without a message after which it is finished
	delayMs  int64   // from the time in a body to the delivery time
	counts   bool
	byMoment bool
	twice    bool // each message must be delivered twice
	mu       sync.Mutex
	seen     []uint8 // deliveries per sequence number, at most 255
	filler   []byte
	storeMs  []int32
	clientMs []int32
	seconds  map[int64]int
	moments  map[[2]int64]int64
	last     time.Time
	report   recvReport
}

func newTally(n int, base int64, size int, idle float64) *tally {
	return &tally{
		n: n, base: base, size: size, idle: idle, seen: make([]uint8, n), filler: bytes.Repeat([]byte{'x'}, size),
		seconds: map[int64]int{}, moments: map[[2]int64]int64{}, last: time.Now(),
	}
}

func (t *tally) finished() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	wanted := t.n
	if t.twice {
		wanted *= 2
	}
	return interrupted.Load() || t.report.Distinct >= t.n && t.report.Received >= wanted || time.Since(t.last).Seconds() > t.idle
}

func (t *tally) result() *recvReport {
	found := &t.report
	found.Expected = t.n
	found.Lost = t.n - found.Distinct
	found.StoreMs = spreadOf(t.storeMs, 1)
	if t.counts {
		found.LateCounts = countsOf(t.storeMs)
	}
	for at, count := range t.moments {
		found.Moments = append(found.Moments, [3]int64{at[0], at[1], count})
	}
	found.ClientMs = spreadOf(t.clientMs, 1)
	for _, count := range t.seconds {
		found.BestSecond = max(found.BestSecond, count)
	}
	if ms := found.LastMs - found.FirstMs; ms > 0 {
		found.Rate = float64(found.Received) / float64(ms) * 1000
	}
	return found
}

// judge counts one message; the caller holds the lock.
func (t *tally) judge(body []byte, storeMs, nowMs int64) {
	if len(body) != t.size || !bytes.Equal(body[stampBytes:], t.filler[stampBytes:]) {
		t.report.Corrupt++
		return
	}
	seq, dueMs := int64(binary.BigEndian.Uint64(body)), int64(binary.BigEndian.Uint64(body[8:]))
	index := seq - t.base
	if index < 0 || index >= int64(len(t.seen)) {
		t.report.Foreign++
		return
	}
	t.report.Received++
	if t.seen[index] == 0 {
		t.report.Distinct++
	} else {
		t.report.Duplicates++
	}
	t.seen[index] = min(t.seen[index], 254) + 1
	due := dueMs + t.delayMs
	if storeMs < due {
		t.report.Early++
	}
	t.storeMs = append(t.storeMs, clamp(storeMs-due))
	t.clientMs = append(t.clientMs, clamp(nowMs-due))
	t.seconds[storeMs/1000]++
	if t.byMoment {
		t.moments[[2]int64{storeMs, storeMs - due}]++
	}
	if t.report.FirstMs == 0 || storeMs < t.report.FirstMs {
		t.report.FirstMs = storeMs
	}
	t.report.LastMs = max(t.report.LastMs, storeMs)
}

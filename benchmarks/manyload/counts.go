package main

import (
	"sync/atomic"
	"syscall"
	"time"
)

const (
	chunkBits  = 24 // sequence numbers of one chunk of seen, as a power of 2
	chunksMax  = 1 << 12
	latenessMs = 1 << 17 // greatest lateness that is counted exactly
)

// histogram counts whole milliseconds.
type histogram struct {
	counts [latenessMs]atomic.Int32
	max    atomic.Int64
}

func (h *histogram) add(ms int64) {
	h.counts[max(0, min(ms, latenessMs-1))].Add(1)
	for {
		most := h.max.Load()
		if ms <= most || h.max.CompareAndSwap(most, ms) {
			return
		}
	}
}

// take returns the percentiles and resets the histogram.
func (h *histogram) take() spread {
	var counts [latenessMs]int32
	total := 0
	for i := range counts {
		counts[i] = h.counts[i].Swap(0)
		total += int(counts[i])
	}
	result := spread{Count: total, Max: float64(h.max.Swap(0))}
	if total == 0 {
		return result
	}
	targets := [...]struct {
		share float64
		into  *float64
	}{{0, &result.Min}, {.5, &result.P50}, {.9, &result.P90}, {.99, &result.P99}, {.999, &result.P999}}
	next, before := 0, 0
	for ms, count := range counts {
		before += int(count)
		for next < len(targets) && float64(before) > targets[next].share*float64(total-1) {
			*targets[next].into = float64(ms)
			next++
		}
	}
	return result
}

// totals are the counts since the start.
type totals struct {
	Sent          int64 `json:"sent"`
	Accepted      int64 `json:"accepted"`
	Rejected      int64 `json:"rejected"`
	HeldBack      int64 `json:"held_back"` // not sent in time, because too many requests were in flight
	Received      int64 `json:"received"`
	Duplicates    int64 `json:"duplicates"`
	Early         int64 `json:"early"`
	Corrupt       int64 `json:"corrupt"`
	Pulls         int64 `json:"pulls"`
	EmptyPulls    int64 `json:"empty_pulls"`
	Commits       int64 `json:"commits"`
	Heartbeats    int64 `json:"heartbeats"`
	Notifications int64 `json:"notifications"`
	Errors        int64 `json:"errors"`
}

type windowReport struct {
	Event   string  `json:"event"`
	StartMs int64   `json:"start_ms"`
	EndMs   int64   `json:"end_ms"`
	CPU     float64 `json:"cpu_seconds"` // of this process
	totals
	AckMs    spread `json:"ack_ms"`
	StoreMs  spread `json:"late_at_store_ms"`
	ClientMs spread `json:"late_at_client_ms"`
}

type finalReport struct {
	Event      string  `json:"event"`
	Distinct   int64   `json:"distinct"`
	Lost       int64   `json:"lost"`
	DrainS     float64 `json:"drain_seconds"`
	FirstError string  `json:"first_error,omitempty"`
	totals
}

// counts is what all connections count together.
type counts struct {
	sent, accepted, rejected, heldBack                         atomic.Int64
	received, distinct, duplicates, early, corrupt             atomic.Int64
	pulls, emptyPulls, commits, heartbeats, notifications, bad atomic.Int64
	pulling                                                    atomic.Int64 // queues
	lastDueMs, lastReceivedMs                                  atomic.Int64
	firstError                                                 atomic.Pointer[string]
	ack, store, client                                         histogram
	seen                                                       [chunksMax]atomic.Pointer[[1 << (chunkBits - 6)]atomic.Uint64]
	before                                                     totals
	startMs                                                    int64
	cpu                                                        float64
}

func newCounts() *counts { return &counts{startMs: time.Now().UnixMilli(), cpu: cpuSeconds()} }

// failed counts an error.
func (c *counts) failed(text string) {
	c.bad.Add(1)
	c.firstError.CompareAndSwap(nil, &text)
}

// take checks and counts the messages of one response.
func (c *counts) take(records []byte) {
	nowMs := time.Now().UnixMilli()
	for len(records) > 0 {
		record, rest, err := nextRecord(records)
		if err != nil || record.seq < 0 || record.seq>>chunkBits >= chunksMax {
			c.corrupt.Add(1)
			return
		}
		records = rest
		c.received.Add(1)
		if c.isFirst(record.seq) {
			c.distinct.Add(1)
		} else {
			c.duplicates.Add(1)
		}
		if record.storeMs < record.due {
			c.early.Add(1)
		}
		c.store.add(record.storeMs - record.due)
		c.client.add(nowMs - record.due)
	}
	c.lastReceivedMs.Store(nowMs)
}

// isFirst marks a sequence number as received, and returns whether it was not received before.
func (c *counts) isFirst(seq int64) bool {
	slot := &c.seen[seq>>chunkBits]
	if slot.Load() == nil {
		slot.CompareAndSwap(nil, new([1 << (chunkBits - 6)]atomic.Uint64))
	}
	index, bit := seq&(1<<chunkBits-1), uint64(1)<<(seq&63)
	return slot.Load()[index>>6].Or(bit)&bit == 0
}

// finished returns whether all accepted messages were received, or no more arrive.
func (c *counts) finished(o *options) bool {
	if c.accepted.Load()+c.rejected.Load() == c.sent.Load() && c.distinct.Load() >= c.accepted.Load() {
		return true
	}
	quiet := max(c.lastDueMs.Load(), c.lastReceivedMs.Load()) + int64(o.idleS)*1_000
	return time.Now().UnixMilli() > quiet
}

func (c *counts) totals() totals {
	return totals{
		c.sent.Load(), c.accepted.Load(), c.rejected.Load(), c.heldBack.Load(), c.received.Load(), c.duplicates.Load(),
		c.early.Load(), c.corrupt.Load(), c.pulls.Load(), c.emptyPulls.Load(), c.commits.Load(), c.heartbeats.Load(),
		c.notifications.Load(), c.bad.Load(),
	}
}

// window returns what was counted since the last call.
func (c *counts) window() *windowReport {
	now, cpu, nowMs := c.totals(), cpuSeconds(), time.Now().UnixMilli()
	b := c.before
	r := &windowReport{
		Event: "window", StartMs: c.startMs, EndMs: nowMs, CPU: cpu - c.cpu,
		totals: totals{
			now.Sent - b.Sent, now.Accepted - b.Accepted, now.Rejected - b.Rejected, now.HeldBack - b.HeldBack,
			now.Received - b.Received, now.Duplicates - b.Duplicates, now.Early - b.Early, now.Corrupt - b.Corrupt,
			now.Pulls - b.Pulls, now.EmptyPulls - b.EmptyPulls, now.Commits - b.Commits, now.Heartbeats - b.Heartbeats,
			now.Notifications - b.Notifications, now.Errors - b.Errors,
		},
		AckMs: c.ack.take(), StoreMs: c.store.take(), ClientMs: c.client.take(),
	}
	c.before, c.startMs, c.cpu = now, nowMs, cpu
	return r
}

func (c *counts) final(drained time.Duration) *finalReport {
	r := &finalReport{Event: "final", Distinct: c.distinct.Load(), DrainS: drained.Seconds(), totals: c.totals()}
	r.Lost = r.Accepted - r.Distinct
	if text := c.firstError.Load(); text != nil {
		r.FirstError = *text
	}
	return r
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}

package main

import (
	"bytes"
	"encoding/binary"
	"sync"
	"time"
)

// operation is connection.send or connection.cancel.
type operation func(c connection, m message, done func(error))

// sendAll distributes the messages over the connections and waits for all responses.
func sendAll(s system, o options, each operation) (report, error) {
	var mu sync.Mutex
	var acksUs []int32
	result := &sendReport{}
	start := time.Now()
	failed := make(chan error, o.conns)
	next := o.base
	for i := range o.conns {
		count := o.n / o.conns
		if i < o.n%o.conns {
			count++
		}
		first := next
		next += int64(count)
		go func() {
			failed <- sendShare(s, o, each, first, count, start, func(us int32, err error) {
				mu.Lock()
				defer mu.Unlock()
				acksUs = append(acksUs, us)
				if err != nil {
					result.Rejected++
					result.FirstBad = err.Error()
				}
			})
		}()
	}
	for range o.conns {
		if err := <-failed; err != nil {
			return nil, err
		}
	}
	end := time.Now()
	result.Seconds, result.StartMs, result.EndMs = end.Sub(start).Seconds(), start.UnixMilli(), end.UnixMilli()
	result.Sent = len(acksUs) - result.Rejected
	result.Rate = float64(result.Sent) / result.Seconds
	result.AckMs = spreadOf(acksUs, .001)
	return result, nil
}

// sendShare sends the messages of one connection, with at most depth in flight, and at most at its share of the rate.
func sendShare(
	s system, o options, each operation, first int64, count int, start time.Time, acknowledged func(int32, error),
) error {
	c, err := s.connect(o)
	if err != nil {
		return err
	}
	defer c.close()
	credits := make(chan struct{}, o.depth)
	share := float64(o.rate) / float64(o.conns)
	var all sync.WaitGroup
	for i := 0; i < count && !interrupted.Load(); i++ {
		if share > 0 {
			time.Sleep(time.Until(start.Add(time.Duration(float64(i) / share * float64(time.Second)))))
		}
		credits <- struct{}{}
		all.Add(1)
		sent := time.Now()
		each(c, newMessage(o, first+int64(i), sent.UnixMilli()), func(err error) {
			acknowledged(clamp(time.Since(sent).Microseconds()), err)
			<-credits
			all.Done()
		})
	}
	all.Wait()
	return nil
}

// newMessage returns a message whose body is that of wireload's timers.
func newMessage(o options, seq, nowMs int64) message {
	due := nowMs + o.delayMs
	if o.dueMs > 0 {
		due = o.dueMs
	}
	if o.spreadMs > 0 {
		due += seq * 7919 % o.spreadMs
	}
	body := bytes.Repeat([]byte{'x'}, o.size)
	binary.BigEndian.PutUint64(body, uint64(seq))
	binary.BigEndian.PutUint64(body[8:], uint64(due))
	return message{seq, due, body}
}

// request is a message that waits for its group.
type request struct {
	m    message
	done func(error)
}

// grouped sends the messages that wait as one group, while it waits for the response to the former group.
type grouped struct {
	sends, cancels func(group []message) error
	closed         func()
	toSend         chan request
	toCancel       chan request
	all            sync.WaitGroup
}

func newGrouped(depth int, sends, cancels func([]message) error, closed func()) *grouped {
	g := &grouped{
		sends: sends, cancels: cancels, closed: closed, toSend: make(chan request, depth), toCancel: make(chan request, depth),
	}
	g.all.Add(2)
	go g.loop(g.toSend, g.sends)
	go g.loop(g.toCancel, g.cancels)
	return g
}

func (g *grouped) loop(requests chan request, execute func([]message) error) {
	defer g.all.Done()
	for first := range requests {
		group := []request{first}
		for len(requests) > 0 {
			group = append(group, <-requests)
		}
		messages := make([]message, len(group))
		for i, each := range group {
			messages[i] = each.m
		}
		err := execute(messages)
		for _, each := range group {
			each.done(err)
		}
	}
}

func (g *grouped) send(m message, done func(error)) { g.toSend <- request{m, done} }

func (g *grouped) cancel(m message, done func(error)) { g.toCancel <- request{m, done} }

func (g *grouped) close() {
	close(g.toSend)
	close(g.toCancel)
	g.all.Wait()
	g.closed()
}

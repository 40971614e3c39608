package main

import (
	"bufio"
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

// receiver pulls the messages of all queues.
type receiver struct {
	*tally
	o options
}

// recv pulls every queue until all expected messages have arrived, or none arrives for a while. It reconnects after a
// connection loss, so that the broker can be killed and restarted meanwhile.
func recv(o options) (report, error) {
	r := &receiver{tally: newTally(o.n, o.base, o.size, o.idle), o: o}
	r.delayMs, r.counts, r.byMoment = o.levelDelay, o.counts, o.moments
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

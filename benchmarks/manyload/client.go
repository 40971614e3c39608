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
	codeHeartbeat = 34
	codeMembers   = 38
	codeCommit    = 15
	codeNotified  = 40

	readBytes      = 16 << 10
	otherOpaque    = 1 << 30 // of requests other than pulls and sends
	connectingMax  = 64
	heartbeatEvery = 30 * time.Second
	commitEvery    = 5 * time.Second
	membersEvery   = 20 * time.Second
	stepsPerSecond = 50 // in which periodic requests of all clients are sent
)

// client is one connection to the broker.
type client struct {
	c         net.Conn
	in        *bufio.Reader
	buffer    []byte
	mu        sync.Mutex // of writes
	heartbeat []byte     // encoded request
	all       *counts
}

func connect(o *options, all *counts) (*client, error) {
	c, err := dial(o.addr)
	if err != nil {
		return nil, err
	}
	return &client{c: c, in: bufio.NewReaderSize(c, readBytes), all: all}, nil
}

func (c *client) write(frames []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.c.Write(frames); err != nil {
		c.all.failed("write: " + err.Error())
	}
}

// register sends the first heartbeat and waits for its response.
func (c *client) register() error {
	c.write(c.heartbeat)
	for {
		header, _, err := readFrame(c.in, &c.buffer)
		if err != nil {
			return err
		}
		if isRequest(header) {
			c.all.notifications.Add(1)
			continue
		}
		if code, _ := number(header, "code"); code != answerOK {
			return fmt.Errorf("heartbeat: %s", header)
		}
		c.all.heartbeats.Add(1)
		return nil
	}
}

// isRequest returns whether a frame of the broker is a request, not a response.
func isRequest(header []byte) bool {
	flag, _ := number(header, "flag")
	return flag&1 == 0
}

// oneway changes the request at the end of the frames, from `start` on, into one without a response.
func oneway(frames []byte, start int) []byte {
	at := bytes.Index(frames[start:], []byte(`,"flag":0,`))
	frames[start+at+8] = '2'
	return frames
}

// together connects clients, some at a time, and returns the first error.
func together(n int, one func(i int) error) error {
	slots, failed := make(chan struct{}, connectingMax), make(chan error, n)
	for i := range n {
		slots <- struct{}{}
		go func() {
			failed <- one(i)
			<-slots
		}()
	}
	for range n {
		if err := <-failed; err != nil {
			return err
		}
	}
	return nil
}

// regularly calls `one` for each of n clients once in every period, at times that are spread over it.
func regularly(n int, period time.Duration, one func(i int)) {
	steps := int(period.Seconds() * stepsPerSecond)
	start := time.Now()
	for step := 0; ; step++ {
		time.Sleep(time.Until(start.Add(time.Duration(step) * time.Second / stepsPerSecond)))
		first, end := n*(step%steps)/steps, n*(step%steps+1)/steps
		for i := first; i < end; i++ {
			one(i)
		}
	}
}

func heartbeatFrame(body string) []byte {
	return appendFrame(nil, codeHeartbeat, otherOpaque, nil, []byte(body))
}

func topicName(o *options, topic int) string { return o.prefix + "-" + pad(topic) }

func groupName(o *options, group int) string { return "g-" + o.prefix + "-" + pad(group) }

func pad(n int) string {
	text := strconv.Itoa(n)
	return "00000"[min(len(text), 5):] + text
}

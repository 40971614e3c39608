package main

import (
	"bufio"
	"bytes"
	"fmt"
	"strconv"
	"sync"
	"time"
)

const scheduleTopic = "SCHEDULE_TOPIC_XXXX"

type resendReport struct {
	Read     int     `json:"read"`
	Sent     int     `json:"sent"`
	Rejected int     `json:"rejected"`
	FirstBad string  `json:"first_rejection,omitempty"`
	Seconds  float64 `json:"seconds"`
	Rate     float64 `json:"per_second"`
}

func (r *resendReport) print() {
	fmt.Printf("read %d, sent %d again in %.2f s: %.0f msg/s, rejected %d\n", r.Read, r.Sent, r.Seconds, r.Rate, r.Rejected)
	if r.FirstBad != "" {
		fmt.Println("first rejection:", r.FirstBad)
	}
}

// waiting is a level message, prepared to be sent again.
type waiting struct {
	topic, queue, properties []byte
	body                     []byte
}

// resend reads the first pending messages of a level and sends each again as a timer with the same delivery time.
func resend(o options) (report, error) {
	start := time.Now()
	found := make(chan waiting, o.conns*o.depth)
	r := &resendReport{}
	failed := make(chan error, o.conns+1)
	var all sync.WaitGroup
	var mu sync.Mutex
	for i := 0; i < o.conns; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			sent, bad, firstBad, err := resendAll(o, found)
			if err != nil {
				failed <- err
				for range found { // unblock the reader
				}
			}
			mu.Lock()
			defer mu.Unlock()
			r.Sent, r.Rejected = r.Sent+sent, r.Rejected+bad
			if r.FirstBad == "" {
				r.FirstBad = firstBad
			}
		}()
	}
	read, err := readLevel(o, found)
	close(found)
	all.Wait()
	if err == nil && len(failed) > 0 {
		err = <-failed
	}
	r.Read, r.Seconds = read, time.Since(start).Seconds()
	r.Rate = float64(r.Sent) / r.Seconds
	return r, err
}

// readLevel pulls a level's queue from its first message.
func readLevel(o options, found chan waiting) (int, error) {
	c, err := dial(o.addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	in := bufio.NewReaderSize(c, readBufferBytes)
	var buffer, out []byte
	offset, read, last := int64(0), 0, time.Now()
	for opaque := 0; read < o.n; opaque++ {
		fields := ext("consumerGroup", o.group, "topic", scheduleTopic, "queueId", strconv.Itoa(o.level-1),
			"queueOffset", strconv.FormatInt(offset, 10), "maxMsgNums", strconv.Itoa(o.batch), "sysFlag", "4",
			"commitOffset", "0", "suspendTimeoutMillis", "0", "subscription", "*", "subVersion", "0",
			"expressionType", "TAG")
		out = appendFrame(out[:0], codePull, opaque, fields, nil)
		if _, err := c.Write(out); err != nil {
			return read, err
		}
		header, body, err := readFrame(in, &buffer)
		if err != nil {
			return read, err
		}
		code, _ := number(header, "code")
		if next, known := number(header, "nextBeginOffset"); known {
			offset = next
		}
		if code != answerOK {
			if time.Since(last).Seconds() > o.idle {
				return read, fmt.Errorf("no further messages after %d: %s", read, header)
			}
			time.Sleep(retryPause)
			continue
		}
		last = time.Now()
		for len(body) > 0 && read < o.n {
			m, rest, err := nextRecord(body)
			if err != nil {
				return read, err
			}
			body = rest
			found <- again(m, o.levelDelay)
			read++
		}
	}
	return read, nil
}

// again copies a level message out of the buffer and converts it to a timer.
func again(m record, delayMs int64) waiting {
	w := waiting{topic: []byte("?"), queue: []byte("0"), body: bytes.Clone(m.body)}
	for _, entry := range bytes.Split(m.properties, []byte{2}) {
		name, value, _ := bytes.Cut(entry, []byte{1})
		switch string(name) {
		case "", "DELAY":
		case "REAL_TOPIC":
			w.topic = bytes.Clone(value)
		case "REAL_QID":
			w.queue = bytes.Clone(value)
		default: // wireload's names and values need no JSON escapes
			w.properties = append(append(append(append(w.properties, name...), `\u0001`...), value...), `\u0002`...)
		}
	}
	w.properties = append(w.properties, deliverMs+`\u0001`...)
	w.properties = append(strconv.AppendInt(w.properties, m.storeMs+delayMs, 10), `\u0002`...)
	return w
}

// resendAll sends messages over one connection, with at most depth requests in flight.
func resendAll(o options, found chan waiting) (sent, bad int, firstBad string, err error) {
	c, err := dial(o.addr)
	if err != nil {
		return 0, 0, "", err
	}
	defer c.Close()
	w, credits := bufio.NewWriterSize(c, writeBufferBytes), make(chan struct{}, o.depth)
	ended := make(chan error, 1)
	wanted := make(chan struct{}, o.depth)
	go func() {
		in := bufio.NewReaderSize(c, readBufferBytes)
		var buffer []byte
		for range wanted {
			header, _, err := readFrame(in, &buffer)
			if err != nil {
				c.Close() // unblock the writer
				ended <- err
				return
			}
			if code, _ := number(header, "code"); code == answerOK {
				sent++
			} else if bad++; firstBad == "" {
				firstBad = string(header)
			}
			<-credits
		}
		ended <- nil
	}()
	var out, fields []byte
	for m := range found {
		select {
		case credits <- struct{}{}:
		default:
			if err = w.Flush(); err != nil {
				return sent, bad, firstBad, err
			}
			select {
			case credits <- struct{}{}:
			case err = <-ended:
				return sent, bad, firstBad, err
			}
		}
		fields = append(fields[:0], `"a":"p_wireload","b":"`...)
		fields = append(append(append(fields, m.topic...), `","c":"TBW102","d":"4","e":"`...), m.queue...)
		fields = append(fields, `","f":"0","g":"`...)
		fields = strconv.AppendInt(fields, time.Now().UnixMilli(), 10)
		fields = append(append(fields, `","h":"0","i":"`...), m.properties...)
		fields = append(fields, `","j":"0","k":"false","m":"false"`...)
		out = appendFrame(out[:0], codeSendV2, 1, fields, m.body)
		if _, err = w.Write(out); err != nil {
			return sent, bad, firstBad, err
		}
		wanted <- struct{}{}
		if len(found) == 0 {
			if err = w.Flush(); err != nil {
				return sent, bad, firstBad, err
			}
		}
	}
	if err = w.Flush(); err != nil {
		return sent, bad, firstBad, err
	}
	close(wanted)
	return sent, bad, firstBad, <-ended
}

package main

import (
	"bufio"
	"fmt"
	"strconv"
	"time"
)

const dialTimeout = 5 * time.Second

// ask sends one request over a new connection and returns the header of the response.
func ask(addr string, code int, fields []byte) ([]byte, error) {
	c, err := dial(addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(dialTimeout)); err != nil {
		return nil, err
	}
	if _, err := c.Write(appendFrame(nil, code, 1, fields, nil)); err != nil {
		return nil, err
	}
	var buffer []byte
	header, _, err := readFrame(bufio.NewReader(c), &buffer)
	if err != nil {
		return nil, err
	}
	if answer, known := number(header, "code"); !known || answer != answerOK {
		return nil, fmt.Errorf("request %d: %s", code, header)
	}
	return header, nil
}

// makeTopic creates the topic.
func makeTopic(o options) error {
	queues := strconv.Itoa(o.queues)
	_, err := ask(o.addr, codeCreateTopic, ext(
		"topic", o.topic, "defaultTopic", "TBW102", "readQueueNums", queues, "writeQueueNums", queues, "perm", "6",
		"topicFilterType", "SINGLE_TAG", "topicSysFlag", "0", "order", "false"))
	return err
}

// maxOffset returns the offset after the last message of a queue.
func maxOffset(o options, queue int) (int64, error) {
	header, err := ask(o.addr, codeMaxOffset, ext("topic", o.topic, "queueId", strconv.Itoa(queue)))
	if err != nil {
		return 0, err
	}
	offset, known := number(header, "offset")
	if !known {
		return 0, fmt.Errorf("no offset in %s", header)
	}
	return offset, nil
}

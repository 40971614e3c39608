package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// produce: --mode sync, async, oneway, batch or ordered.
func produce(c *command) error {
	options := []producer.Option{
		producer.WithNameServer(primitive.NamesrvAddr{c.text("namesrv", "")}),
		producer.WithGroupName(c.text("group", "p_interop")),
		producer.WithInstanceName("producer-" + c.id),
		producer.WithSendMsgTimeout(10 * time.Second),
	}
	options = append(options, producerTLS()...)
	options = append(options, producer.WithCredentials(credentials(c)))
	if c.text("mode", "sync") == "ordered" {
		options = append(options, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	}
	p, err := rocketmq.NewProducer(options...)
	if err != nil {
		return err
	}
	if err := p.Start(); err != nil {
		return err
	}
	defer func() { _ = p.Shutdown() }()
	if err := send(c, p); err != nil {
		return err
	}
	if c.text("mode", "sync") == "oneway" {
		c.sleep(calm) // see keepConnected
	}
	return nil
}

// credentials: --access-key and --secret-key; without them requests are not signed.
func credentials(c *command) primitive.Credentials {
	return primitive.Credentials{AccessKey: c.text("access-key", ""), SecretKey: c.text("secret-key", "")}
}

func send(c *command, p rocketmq.Producer) error {
	n := c.number("n", 1)
	switch mode := c.text("mode", "sync"); mode {
	case "async":
		return sendAsync(c, p, n)
	case "batch":
		batch := make([]*primitive.Message, n)
		for i := range batch {
			batch[i] = message(c, i)
		}
		result, err := p.SendSync(context.Background(), batch...)
		if err != nil {
			return err
		}
		c.print("sent", sent(0, result))
		return nil
	default:
		for i := 0; i < n; i++ {
			if err := sendOne(c, p, mode, i); err != nil {
				return err
			}
		}
		return nil
	}
}

func sendOne(c *command, p rocketmq.Producer, mode string, i int) error {
	if mode == "oneway" {
		if err := p.SendOneWay(context.Background(), message(c, i)); err != nil {
			return err
		}
		c.print("sent", fields{"i": i, "oneway": true})
		return nil
	}
	m := message(c, i)
	if mode == "ordered" {
		m.WithShardingKey("shard-" + strconv.Itoa(i%c.number("shards", 2)))
	}
	result, err := p.SendSync(context.Background(), m)
	if err != nil {
		return err
	}
	c.print("sent", sent(i, result))
	return nil
}

func sendAsync(c *command, p rocketmq.Producer, n int) error {
	var open sync.WaitGroup
	for i := 0; i < n; i++ {
		i := i
		open.Add(1)
		answer := func(_ context.Context, result *primitive.SendResult, err error) {
			defer open.Done()
			if err != nil {
				c.print("refused", fields{"i": i, "text": err.Error()})
				return
			}
			c.print("sent", sent(i, result))
		}
		if err := p.SendAsync(context.Background(), answer, message(c, i)); err != nil {
			return err
		}
	}
	answered := make(chan struct{})
	go func() {
		open.Wait()
		close(answered)
	}()
	select {
	case <-answered:
		return nil
	case <-time.After(30 * time.Second):
		return fmt.Errorf("asynchronous sends without an answer")
	}
}

// message makes one of a series: body PREFIX-i, or that padded to --body-size bytes.
func message(c *command, i int) *primitive.Message {
	body := c.text("body", "body") + "-" + strconv.Itoa(i)
	if missing := c.number("body-size", 0) - len(body); missing > 0 {
		body += strings.Repeat(".", missing)
	}
	m := primitive.NewMessage(c.text("topic", ""), []byte(body))
	if tags := c.text("tags", ""); tags != "" {
		m.WithTag(tags)
	}
	if keys := c.text("keys", ""); keys != "" {
		m.WithKeys([]string{keys + "-" + strconv.Itoa(i)})
	}
	if level := c.number("level", 0); level > 0 {
		m.WithDelayTimeLevel(level)
	}
	if delay := c.number("delay-ms", 0); delay > 0 {
		due := time.Now().UnixMilli() + int64(delay)
		m.WithProperty("TIMER_DELIVER_MS", strconv.FormatInt(due, 10))
	}
	if key, value, found := strings.Cut(c.text("property", ""), "="); found {
		m.WithProperty(key, value)
	}
	return m
}

func sent(i int, result *primitive.SendResult) fields {
	status := fmt.Sprintf("status %d", result.Status)
	if result.Status == primitive.SendOK {
		status = "SEND_OK"
	}
	return fields{
		"i": i, "status": status, "msgId": result.MsgID, "offsetMsgId": result.OffsetMsgID,
		"topic": result.MessageQueue.Topic, "queueId": result.MessageQueue.QueueId,
		"queueOffset": result.QueueOffset,
	}
}

// Drives Apache's gRPC client for Go, rocketmq-clients/golang/v5; the commands and events are those of grpc_client.py.
//
// --namesrv is the address of the gRPC port. The client connects by TLS; it has neither push consumers nor recalls.
package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

const (
	await  = 5 * time.Second
	retry  = 20 * time.Millisecond
	waitMs = 60_000
)

var commands = map[string]func(*command) error{
	"produce": produce,
	"receive": receive,
	"stop":    stop,
}

func main() {
	runProgram()
}

// configuration: --access-key and --secret-key; without them calls are not signed.
func configuration(c *command) *rocketmq.Config {
	return &rocketmq.Config{
		Endpoint:      c.text("namesrv", ""),
		ConsumerGroup: c.text("group", ""),
		Credentials: &credentials.SessionCredentials{
			AccessKey: c.text("access-key", ""), AccessSecret: c.text("secret-key", ""),
		},
	}
}

// checker: resolves the half messages that the broker checks, with --checked commit or rollback.
func checker(c *command) *rocketmq.TransactionChecker {
	return &rocketmq.TransactionChecker{Check: func(view *rocketmq.MessageView) rocketmq.TransactionResolution {
		c.print("checked", fields{"msgId": view.GetMessageId()})
		if c.text("checked", "commit") == "rollback" {
			return rocketmq.ROLLBACK
		}
		return rocketmq.COMMIT
	}}
}

// produce: --n messages; with --end commit, rollback or none as half messages.
func produce(c *command) error {
	options := []rocketmq.ProducerOption{rocketmq.WithTopics(c.text("topic", ""))}
	if c.text("end", "") != "" {
		options = append(options, rocketmq.WithTransactionChecker(checker(c)))
	}
	producer, err := rocketmq.NewProducer(configuration(c), options...)
	if err != nil {
		return err
	}
	if err := producer.Start(); err != nil {
		return err
	}
	defer func() { _ = producer.GracefulStop() }()
	for i := 0; i < c.number("n", 1); i++ {
		sent, err := send(c, producer, message(c, i))
		if err != nil {
			return err
		}
		c.print("sent", fields{"i": i, "msgId": sent.MessageID, "queueOffset": sent.Offset, "recallHandle": ""})
	}
	c.sleep(c.ms("linger-ms", 0))
	return nil
}

func send(c *command, producer rocketmq.Producer, made *rocketmq.Message) (*rocketmq.SendReceipt, error) {
	end := c.text("end", "")
	if end == "" {
		return one(producer.Send(context.Background(), made))
	}
	transaction := producer.BeginTransaction()
	sent, err := one(producer.SendWithTransaction(context.Background(), made, transaction))
	if err != nil {
		return nil, err
	}
	switch end {
	case "commit":
		err = transaction.Commit()
	case "rollback":
		err = transaction.RollBack()
	}
	return sent, err
}

func one(sent []*rocketmq.SendReceipt, err error) (*rocketmq.SendReceipt, error) {
	if err == nil && len(sent) != 1 {
		err = fmt.Errorf("%d receipts for one message", len(sent))
	}
	if err != nil {
		return nil, err
	}
	return sent[0], nil
}

// message: one of a series, with the body PREFIX-i.
func message(c *command, i int) *rocketmq.Message {
	made := &rocketmq.Message{Topic: c.text("topic", ""), Body: []byte(fmt.Sprintf("%s-%d", c.text("body", "body"), i))}
	if tag := c.text("tags", ""); tag != "" {
		made.SetTag(tag)
	}
	if keys := c.text("keys", ""); keys != "" {
		made.SetKeys(fmt.Sprintf("%s-%d", keys, i))
	}
	if group := c.text("message-group", ""); group != "" {
		made.SetMessageGroup(group)
	}
	if delay := c.ms("delay-ms", 0); delay > 0 {
		made.SetDelayTimestamp(time.Now().Add(delay))
	}
	return made
}

// receive: with a SimpleConsumer, until --until messages are acknowledged. The first --hold-first are not; with
// --change-ms they get that invisible time.
func receive(c *command) error {
	filters := map[string]*rocketmq.FilterExpression{
		c.text("topic", ""): rocketmq.NewFilterExpression(c.text("tags", "*")),
	}
	consumer, err := rocketmq.NewSimpleConsumer(configuration(c), rocketmq.WithAwaitDuration(await),
		rocketmq.WithSubscriptionExpressions(filters))
	if err != nil {
		return err
	}
	if err := consumer.Start(); err != nil {
		return err
	}
	defer func() { _ = consumer.GracefulStop() }()
	c.print("started", nil)
	end := time.Now().Add(c.ms("wait-ms", waitMs))
	var seen, acknowledged atomic.Int32
	for int(acknowledged.Load()) < c.number("until", math.MaxInt32) && time.Now().Before(end) && !c.sleep(0) {
		views, err := consumer.Receive(context.Background(), int32(c.number("batch", 32)), c.ms("invisible-ms", 10_000))
		if err != nil {
			if !isNothing(err) {
				return err
			}
			c.sleep(retry)
		}
		for _, view := range views {
			action, err := handle(c, consumer, view, int(seen.Add(1)))
			if err != nil {
				return err
			}
			if action == "acknowledged" {
				acknowledged.Add(1)
			}
			c.print("message", fieldsOf(view, action))
		}
	}
	return nil
}

func handle(c *command, consumer rocketmq.SimpleConsumer, view *rocketmq.MessageView, seen int) (string, error) {
	if seen > c.number("hold-first", 0) {
		return "acknowledged", consumer.Ack(context.Background(), view)
	}
	if change := c.ms("change-ms", 0); change > 0 {
		return "held", consumer.ChangeInvisibleDuration(view, change)
	}
	return "held", nil
}

// isNothing returns whether a receive has ended without messages. Apache's proxy returns none before it has the
// client's settings, and Start does not wait until they are sent.
func isNothing(err error) bool {
	var status *rocketmq.ErrRpcStatus
	if !errors.As(err, &status) {
		return false
	}
	return status.Code == int32(v2.Code_MESSAGE_NOT_FOUND) || strings.Contains(status.Message, `"settings" is null`)
}

func fieldsOf(view *rocketmq.MessageView, action string) fields {
	return fields{
		"action":        action,
		"msgId":         view.GetMessageId(),
		"topic":         view.GetTopic(),
		"body":          string(view.GetBody()),
		"attempt":       view.GetDeliveryAttempt(),
		"tags":          text(view.GetTag()),
		"keys":          strings.Join(view.GetKeys(), " "),
		"messageGroup":  text(view.GetMessageGroup()),
		"bornTimestamp": view.GetBornTimestamp().UnixMilli(),
	}
}

func text(found *string) string {
	if found == nil {
		return ""
	}
	return *found
}

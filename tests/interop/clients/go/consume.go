package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const calm = 300 * time.Millisecond

type listener struct {
	*command
	seen  atomic.Int64
	taken atomic.Int64
}

// pushConsume: --mode concurrent, orderly or broadcast. The first --fail-first messages are refused once. It ends
// --linger-ms after --until messages were consumed, after --wait-ms, or when stopped.
func pushConsume(c *command) error {
	mode := c.text("mode", "concurrent")
	options := []consumer.Option{
		consumer.WithNameServer(primitive.NamesrvAddr{c.text("namesrv", "")}),
		consumer.WithGroupName(c.text("group", "")),
		consumer.WithInstance("push-" + c.id),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(mode == "orderly"),
		consumer.WithSuspendCurrentQueueTimeMillis(100 * time.Millisecond),
	}
	options = append(options, consumerTLS()...)
	options = append(options, consumer.WithCredentials(credentials(c)))
	if mode == "broadcast" {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	p, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return err
	}
	l := &listener{command: c}
	filter := consumer.MessageSelector{Type: consumer.TAG, Expression: c.text("tags", "*")}
	if err := p.Subscribe(c.text("topic", ""), filter, l.take); err != nil {
		return err
	}
	disconnect, err := keepConnected(c, "push-"+c.id)
	if err != nil {
		return err
	}
	defer disconnect()
	if err := p.Start(); err != nil {
		return err
	}
	c.print("started", nil)
	end := time.Now().Add(c.ms("wait-ms", 60_000))
	until := int64(c.number("until", 1<<30))
	for l.taken.Load() < until && time.Now().Before(end) && !c.sleep(20*time.Millisecond) {
		continue
	}
	c.sleep(c.ms("linger-ms", 0))
	return p.Shutdown()
}

// keepConnected starts an idle producer that shares the connections of a consumer. At shutdown a consumer sends its
// offsets and closes the connection immediately. This client marks no request as one-way, so that the broker responds.
// Closing a connection with unread responses resets it, and the broker loses the requests that it has not read yet;
// Apache's broker does, too. The idle producer therefore keeps the connections open for a moment longer.
func keepConnected(c *command, instance string) (func(), error) {
	p, err := rocketmq.NewProducer(
		producer.WithNameServer(primitive.NamesrvAddr{c.text("namesrv", "")}),
		producer.WithGroupName("p_companion-"+c.id),
		producer.WithInstanceName(instance),
		producer.WithCredentials(credentials(c)),
	)
	if err != nil {
		return nil, err
	}
	return func() {
		time.Sleep(calm)
		_ = p.Shutdown()
	}, p.Start()
}

func (l *listener) take(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	result := consumer.ConsumeSuccess
	for _, m := range messages {
		f := received(m)
		f["action"] = "consumed"
		if l.seen.Add(1) <= int64(l.number("fail-first", 0)) {
			f["action"] = "later"
			result = consumer.ConsumeRetryLater
		} else {
			l.taken.Add(1)
		}
		l.print("message", f)
	}
	if result == consumer.ConsumeRetryLater {
		if l.text("mode", "concurrent") == "orderly" {
			return consumer.SuspendCurrentQueueAMoment, nil
		}
		if concurrent, found := primitive.GetConcurrentlyCtx(ctx); found {
			concurrent.DelayLevelWhenNextConsume = l.number("retry-level", 1)
		}
	}
	return result, nil
}

// pull: read --until messages with the pull consumer and acknowledge them.
func pull(c *command) error {
	p, err := rocketmq.NewPullConsumer(
		consumer.WithNameServer(primitive.NamesrvAddr{c.text("namesrv", "")}),
		consumer.WithGroupName(c.text("group", "")),
		consumer.WithInstance("pull-"+c.id),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithCredentials(credentials(c)),
	)
	if err != nil {
		return err
	}
	filter := consumer.MessageSelector{Type: consumer.TAG, Expression: c.text("tags", "*")}
	if err := p.Subscribe(c.text("topic", ""), filter); err != nil {
		return err
	}
	disconnect, err := keepConnected(c, "pull-"+c.id)
	if err != nil {
		return err
	}
	defer disconnect()
	if err := p.Start(); err != nil {
		return err
	}
	defer func() { _ = p.Shutdown() }()
	c.print("started", nil)
	end := time.Now().Add(c.ms("wait-ms", 30_000))
	for left := c.number("until", 1); left > 0; {
		if time.Now().After(end) || c.sleep(0) {
			return fmt.Errorf("%d messages did not come", left)
		}
		request, err := p.Poll(context.Background(), 500*time.Millisecond)
		if consumer.IsNoNewMsgError(err) {
			continue
		}
		if err != nil {
			return err
		}
		for _, m := range request.GetMsgList() {
			c.print("message", received(m))
			left--
		}
		p.ACK(context.Background(), request, consumer.ConsumeSuccess)
	}
	return nil
}

func received(m *primitive.MessageExt) fields {
	f := fields{
		"msgId": m.MsgId, "offsetMsgId": m.OffsetMsgId, "topic": m.Topic, "queueOffset": m.QueueOffset,
		"physOffset": m.CommitLogOffset, "bornTimestamp": m.BornTimestamp,
		"storeTimestamp": m.StoreTimestamp, "reconsumeTimes": m.ReconsumeTimes,
		"preparedOffset": m.PreparedTransactionOffset, "tags": m.GetTags(), "keys": m.GetKeys(),
		"body": string(m.Body), "properties": m.GetProperties(),
	}
	if m.Queue != nil {
		f["queueId"] = m.Queue.QueueId
	}
	return f
}

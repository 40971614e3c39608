package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	streamName   = "bench"
	dueSubject   = "bench.due"
	laterSubject = "bench.later."
	reconnectMs  = 50
	ackPending   = 20_000
)

// natsSystem is JetStream with message schedules: each pending message has a subject of its own.
type natsSystem struct{ addr string }

func (s *natsSystem) open() (*nats.Conn, jetstream.JetStream, error) {
	c, err := nats.Connect("nats://"+s.addr, nats.MaxReconnects(-1), nats.ReconnectWait(reconnectMs*time.Millisecond),
		nats.RetryOnFailedConnect(false))
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(c)
	return c, js, err
}

func (s *natsSystem) setup() error {
	c, js, err := s.open()
	if err != nil {
		return err
	}
	defer c.Close()
	ctx := context.Background()
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: streamName, Subjects: []string{"bench.>"}, Storage: jetstream.FileStorage, AllowMsgSchedules: true,
	})
	if err != nil {
		return err
	}
	_, err = stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: "workers", FilterSubject: dueSubject, AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: ackPending,
	})
	return err
}

type natsConnection struct {
	c      *nats.Conn
	js     jetstream.JetStream
	stream jetstream.Stream
}

func (s *natsSystem) connect(o options) (connection, error) {
	c, js, err := s.open()
	if err != nil {
		return nil, err
	}
	stream, err := js.Stream(context.Background(), streamName)
	return &natsConnection{c, js, stream}, err
}

func subjectOf(m message) string { return laterSubject + strconv.FormatInt(m.seq, 10) }

func (n *natsConnection) send(m message, done func(error)) {
	out := nats.NewMsg(subjectOf(m))
	out.Header.Set("Nats-Schedule", "@at "+time.UnixMilli(m.dueMs).UTC().Format("2006-01-02T15:04:05.000Z"))
	out.Header.Set("Nats-Schedule-Target", dueSubject)
	out.Data = m.body
	future, err := n.js.PublishMsgAsync(out)
	if err != nil {
		go done(err)
		return
	}
	go func() {
		select {
		case <-future.Ok():
			done(nil)
		case err := <-future.Err():
			done(err)
		}
	}()
}

// cancel removes the subject of the message, which is how a schedule is cancelled.
func (n *natsConnection) cancel(m message, done func(error)) {
	go func() { done(n.stream.Purge(context.Background(), jetstream.WithPurgeSubject(subjectOf(m)))) }()
}

func (n *natsConnection) close() { n.c.Close() }

func (s *natsSystem) receive(o options, t *tally, stop <-chan struct{}) error {
	for range o.conns {
		c, js, err := s.open()
		if err != nil {
			return err
		}
		defer c.Close()
		consumer, err := js.Consumer(context.Background(), streamName, "workers")
		if err != nil {
			return fmt.Errorf("consumer: %w", err)
		}
		consuming, err := consumer.Consume(func(m jetstream.Msg) {
			t.take(m.Data())
			_ = m.Ack()
		}, jetstream.PullMaxMessages(1_000))
		if err != nil {
			return err
		}
		defer consuming.Stop()
	}
	<-stop
	return nil
}

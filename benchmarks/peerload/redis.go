package main

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	laterKey, dueKey, groupName = "bench:later", "bench:due", "workers"
	moveCount                   = 1_000
	readCount                   = 256
	pollPause                   = 5 * time.Millisecond
	retryPause                  = 50 * time.Millisecond
)

// moveDue moves due messages from the sorted set to the stream, in one step.
var moveDue = redis.NewScript(`
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
for _, body in ipairs(due) do
  redis.call('XADD', KEYS[2], '*', 'b', body)
  redis.call('ZREM', KEYS[1], body)
end
return #due`)

// redisSystem is a sorted set by due time, a worker that polls it, and a stream with a consumer group.
type redisSystem struct{ addr string }

func (s *redisSystem) open() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: s.addr, PoolSize: 1, MaxRetries: -1, ReadTimeout: time.Minute})
}

func (s *redisSystem) setup() error {
	client := s.open()
	defer client.Close()
	return client.XGroupCreateMkStream(context.Background(), dueKey, groupName, "0").Err()
}

func (s *redisSystem) connect(o options) (connection, error) {
	client := s.open()
	ctx := context.Background()
	if err := client.Ping(ctx).Err(); err != nil {
		return nil, err
	}
	sends := func(group []message) error {
		_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, m := range group {
				p.ZAdd(ctx, laterKey, redis.Z{Score: float64(m.dueMs), Member: m.body})
			}
			return nil
		})
		return err
	}
	cancels := func(group []message) error {
		_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, m := range group {
				p.ZRem(ctx, laterKey, m.body)
			}
			return nil
		})
		return err
	}
	return newGrouped(o.depth, sends, cancels, func() { client.Close() }), nil
}

func (s *redisSystem) receive(o options, t *tally, stop <-chan struct{}) error {
	var all sync.WaitGroup
	all.Add(1 + o.conns)
	go func() {
		defer all.Done()
		s.move(stop)
	}()
	for i := range o.conns {
		go func() {
			defer all.Done()
			s.read("c"+strconv.Itoa(i), t, stop)
		}()
	}
	all.Wait()
	return nil
}

func stopped(stop <-chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}

// move is the worker; it polls every pollPause while nothing is due.
func (s *redisSystem) move(stop <-chan struct{}) {
	client, ctx := s.open(), context.Background()
	defer client.Close()
	for !stopped(stop) {
		now := strconv.FormatInt(time.Now().UnixMilli(), 10)
		moved, err := moveDue.Run(ctx, client, []string{laterKey, dueKey}, now, moveCount).Int()
		if err != nil {
			time.Sleep(retryPause)
		} else if moved < moveCount {
			time.Sleep(pollPause)
		}
	}
}

// read consumes the stream; after an error it first reads again what it has not acknowledged.
func (s *redisSystem) read(name string, t *tally, stop <-chan struct{}) {
	client, ctx := s.open(), context.Background()
	defer client.Close()
	from := ">"
	for !stopped(stop) {
		streams, err := client.XReadGroup(ctx, &redis.XReadGroupArgs{
			Group: groupName, Consumer: name, Streams: []string{dueKey, from}, Count: readCount, Block: time.Second,
		}).Result()
		if errors.Is(err, redis.Nil) {
			continue
		}
		if err == nil && len(streams[0].Messages) == 0 {
			from = ">"
			continue
		}
		if err == nil {
			err = s.consume(client, streams[0].Messages, t)
		}
		if err != nil {
			from = "0"
			if !strings.HasPrefix(err.Error(), "LOADING") {
				time.Sleep(retryPause)
			}
		}
	}
}

func (s *redisSystem) consume(client *redis.Client, messages []redis.XMessage, t *tally) error {
	ctx := context.Background()
	bodies, ids := make([][]byte, len(messages)), make([]string, len(messages))
	for i, m := range messages {
		body, _ := m.Values["b"].(string)
		bodies[i], ids[i] = []byte(body), m.ID
	}
	t.take(bodies...)
	_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.XAck(ctx, dueKey, groupName, ids...)
		p.XDel(ctx, dueKey, ids...)
		return nil
	})
	return err
}

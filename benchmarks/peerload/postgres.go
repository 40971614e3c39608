package main

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	takeCount  = 500
	createRows = `CREATE TABLE later (seq bigint PRIMARY KEY, due bigint NOT NULL, body bytea NOT NULL);
		CREATE INDEX later_due ON later (due)`
	insertRows = `INSERT INTO later (seq, due, body) SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[])`
	deleteRows = `DELETE FROM later WHERE seq = ANY($1)`
	takeRows   = `DELETE FROM later WHERE seq IN (
		SELECT seq FROM later WHERE due <= $1 ORDER BY due LIMIT $2 FOR UPDATE SKIP LOCKED) RETURNING body`
)

// postgresSystem is a table; consumers take due rows with SKIP LOCKED, and commit after they have handled them.
type postgresSystem struct{ addr string }

func (s *postgresSystem) open() (*pgx.Conn, error) {
	return pgx.Connect(context.Background(), "postgres://postgres@"+s.addr+"/postgres?sslmode=disable")
}

func (s *postgresSystem) setup() error {
	c, err := s.open()
	if err != nil {
		return err
	}
	defer c.Close(context.Background())
	_, err = c.Exec(context.Background(), createRows)
	return err
}

func (s *postgresSystem) connect(o options) (connection, error) {
	c, err := s.open()
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	sends := func(group []message) error {
		seqs, dues, bodies := make([]int64, len(group)), make([]int64, len(group)), make([][]byte, len(group))
		for i, m := range group {
			seqs[i], dues[i], bodies[i] = m.seq, m.dueMs, m.body
		}
		_, err := c.Exec(ctx, insertRows, seqs, dues, bodies)
		return err
	}
	cancels := func(group []message) error {
		seqs := make([]int64, len(group))
		for i, m := range group {
			seqs[i] = m.seq
		}
		_, err := c.Exec(ctx, deleteRows, seqs)
		return err
	}
	return newGrouped(o.depth, sends, cancels, func() { c.Close(ctx) }), nil
}

func (s *postgresSystem) receive(o options, t *tally, stop <-chan struct{}) error {
	var all sync.WaitGroup
	for range o.conns {
		all.Add(1)
		go func() {
			defer all.Done()
			for !stopped(stop) {
				if c, err := s.open(); err == nil {
					s.consume(c, t, stop)
					c.Close(context.Background())
				}
				time.Sleep(retryPause)
			}
		}()
	}
	all.Wait()
	return nil
}

// consume takes due rows over one connection until it is lost; it polls every pollPause while nothing is due.
func (s *postgresSystem) consume(c *pgx.Conn, t *tally, stop <-chan struct{}) {
	ctx := context.Background()
	for !stopped(stop) {
		count := 0
		err := pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
			rows, err := tx.Query(ctx, takeRows, time.Now().UnixMilli(), takeCount)
			if err != nil {
				return err
			}
			bodies, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
			if err == nil && len(bodies) > 0 {
				t.take(bodies...)
			}
			count = len(bodies)
			return err
		})
		if err != nil {
			return
		}
		if count < takeCount {
			time.Sleep(pollPause)
		}
	}
}

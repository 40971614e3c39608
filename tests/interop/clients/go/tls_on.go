//go:build tls

package main

import (
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// Built with go_tls.mod, whose newer client connects by TLS.
func producerTLS() []producer.Option { return []producer.Option{producer.WithTls(true)} }
func consumerTLS() []consumer.Option { return []consumer.Option{consumer.WithTls(true)} }

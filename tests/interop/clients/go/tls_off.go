//go:build !tls

package main

import (
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// rocketmq-client-go 2.1.2 does not support TLS.
func producerTLS() []producer.Option { return nil }
func consumerTLS() []consumer.Option { return nil }

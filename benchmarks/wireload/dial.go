package main

import (
	"crypto/tls"
	"net"
)

// useTLS makes every connection of this process use TLS. The broker's certificate is not verified, as by default in
// Apache's clients.
var useTLS bool

// dial connects to the broker.
func dial(addr string) (net.Conn, error) {
	if !useTLS {
		return net.DialTimeout("tcp", addr, dialTimeout)
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	return tls.DialWithDialer(&dialer, "tcp", addr, &tls.Config{InsecureSkipVerify: true})
}

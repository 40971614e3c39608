// Drives rocketmq-client-go from a command line and prints one JSON line per event.
//
//	go-client produce --namesrv 127.0.0.1:9876 --topic T --n 10 --level 1    one command
//	go-client session                                                     commands from stdin
package main

import (
	"fmt"
	"os"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var commands = map[string]func(*command) error{
	"produce":      produce,
	"push-consume": pushConsume,
	"pull":         pull,
	"stop":         stop,
}

func main() {
	rlog.SetLogLevel("error")
	if err := rlog.SetOutputPath(os.DevNull); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	runProgram()
}

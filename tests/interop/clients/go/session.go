// Session of a Go client program, compiled into each of them.
//
// A line of a session is: id TAB command TAB --option TAB value ... Each command runs in its own goroutine, and its
// events have its id; the last one is "done" or "failed". `stop --target id` stops a running consumer.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

type command struct {
	id      string
	name    string
	options map[string]string
	stopped chan struct{}
	once    sync.Once
}

var (
	out     sync.Mutex
	running sync.Map // id to *command
)

// runProgram runs the command line.
func runProgram() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: session | COMMAND --option value ...")
		os.Exit(2)
	}
	if os.Args[1] == "session" {
		session()
		return
	}
	c, err := parse("0", os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if !c.run() {
		os.Exit(1)
	}
}

func session() {
	var all sync.WaitGroup
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		parts := strings.Split(lines.Text(), "\t")
		c, err := parse(parts[0], parts[1:])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		running.Store(c.id, c)
		all.Add(1)
		go func() {
			defer all.Done()
			c.run()
			running.Delete(c.id)
		}()
	}
	running.Range(func(_, c any) bool {
		c.(*command).stop()
		return true
	})
	all.Wait()
}

func parse(id string, words []string) (*command, error) {
	c := &command{id: id, options: map[string]string{}, stopped: make(chan struct{})}
	if len(words) == 0 || len(words)%2 == 0 {
		return nil, fmt.Errorf("expected a command and pairs of --option value, found %q", words)
	}
	c.name = words[0]
	for i := 1; i < len(words); i += 2 {
		if !strings.HasPrefix(words[i], "--") {
			return nil, fmt.Errorf("expected an option, found %q", words[i])
		}
		c.options[words[i][2:]] = words[i+1]
	}
	return c, nil
}

func (c *command) run() bool {
	do, known := commands[c.name]
	if !known {
		do = func(*command) error { return fmt.Errorf("no such command: %s", c.name) }
	}
	if err := do(c); err != nil {
		c.print("failed", fields{"error": fmt.Sprintf("%T", err), "text": err.Error()})
		return false
	}
	c.print("done", nil)
	return true
}

func (c *command) stop() {
	c.once.Do(func() { close(c.stopped) })
}

func stop(c *command) error {
	if target, found := running.Load(c.text("target", "")); found {
		target.(*command).stop()
	}
	return nil
}

// sleep waits for a duration, or until the command is stopped; it returns whether it was stopped.
func (c *command) sleep(d time.Duration) bool {
	select {
	case <-c.stopped:
		return true
	case <-time.After(d):
		return false
	}
}

func (c *command) text(name, otherwise string) string {
	if value, found := c.options[name]; found {
		return value
	}
	return otherwise
}

func (c *command) number(name string, otherwise int) int {
	value, found := c.options[name]
	if !found {
		return otherwise
	}
	var n int
	if _, err := fmt.Sscanf(value, "%d", &n); err != nil {
		panic(fmt.Sprintf("--%s %s is no number", name, value))
	}
	return n
}

func (c *command) ms(name string, otherwise int) time.Duration {
	return time.Duration(c.number(name, otherwise)) * time.Millisecond
}

type fields map[string]any

func (c *command) print(event string, f fields) {
	line := fields{"id": c.id, "event": event, "at": time.Now().UnixMilli()}
	for k, v := range f {
		line[k] = v
	}
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	out.Lock()
	defer out.Unlock()
	fmt.Println(string(text))
}

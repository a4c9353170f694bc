package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
)

// Command is a command that an agent runs.
type Command struct {
	conn net.Conn
	mu   sync.Mutex // guards writes to conn

	done   chan struct{}
	status Status
	err    error
}

// Start has the agent at the other end of conn run a command. The Command then owns conn. One
// goroutine writes the command's output to both writers.
func Start(conn net.Conn, req Request, stdout, stderr io.Writer) (*Command, error) {
	if err := writeJSON(conn, frameRequest, req); err != nil {
		conn.Close()
		return nil, fmt.Errorf("start %q in the guest: %w", req.Argv, err)
	}
	c := &Command{conn: conn, done: make(chan struct{})}
	go c.read(stdout, stderr)
	return c, nil
}

func (c *Command) read(stdout, stderr io.Writer) {
	defer close(c.done)
	defer c.conn.Close()
	for {
		kind, body, err := readFrame(c.conn)
		if err == io.EOF {
			err = errors.New("the agent hung up before the command had ended")
		}
		switch {
		case err != nil:
			c.err = err
			return
		case kind == frameStdout:
			stdout.Write(body)
		case kind == frameStderr:
			stderr.Write(body)
		case kind == frameStatus:
			c.err = json.Unmarshal(body, &c.status)
			return
		}
	}
}

// Signal sends a signal to the command and to all processes that the command started.
func (c *Command) Signal(sig syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return writeFrame(c.conn, frameSignal, []byte{byte(sig)})
}

// Close closes the connection. The agent then kills the processes that still run.
func (c *Command) Close() error { return c.conn.Close() }

// Done is closed when the command has ended, or the guest has gone.
func (c *Command) Done() <-chan struct{} { return c.done }

// Status says how the command ended. Call Status after Done. Status returns an error if the guest has
// gone.
func (c *Command) Status() (Status, error) { return c.status, c.err }

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

// Serve answers requests until the listener closes.
func Serve(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go serve(conn)
	}
}

func serve(conn net.Conn) {
	defer conn.Close()
	kind, body, err := readFrame(conn)
	var req Request
	if err != nil || kind != frameRequest || json.Unmarshal(body, &req) != nil {
		return
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	s := &session{conn: conn, group: make(chan int, 1)}
	go func() {
		s.follow(ctx)
		cancel(errors.New("the host has hung up"))
	}()
	writeJSON(s, frameStatus, s.run(ctx, req))
}

// session is a connection, and the command that runs for the connection.
type session struct {
	conn  net.Conn
	mu    sync.Mutex // guards writes to conn
	group chan int   // holds the command's process group once the command runs
}

// Write sends a whole frame.
func (s *session) Write(frame []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn.Write(frame)
}

// follow delivers the host's signals until the host closes the connection.
func (s *session) follow(ctx context.Context) {
	for {
		kind, body, err := readFrame(s.conn)
		if err != nil {
			return
		}
		if kind != frameSignal || len(body) != 1 {
			continue
		}
		select {
		case pgid := <-s.group:
			s.group <- pgid
			syscall.Kill(-pgid, syscall.Signal(body[0]))
		case <-ctx.Done():
		}
	}
}

func (s *session) run(ctx context.Context, req Request) Status {
	if req.AwaitTCP != 0 {
		if err := AwaitTCP(ctx, req.AwaitTCP); err != nil {
			return Status{Code: -1, Err: err.Error()}
		}
		return Status{}
	}
	if len(req.Argv) == 0 {
		return Status{Code: -1, Err: "the request names no command"}
	}
	cmd := exec.CommandContext(ctx, req.Argv[0], req.Argv[1:]...)
	cmd.Env = append(os.Environ(), req.Env...)
	cmd.Stdin = bytes.NewReader(req.Stdin)
	cmd.Stdout = stream{s, frameStdout}
	cmd.Stderr = stream{s, frameStderr}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := cmd.Start(); err != nil {
		return Status{Code: -1, Err: fmt.Sprintf("start %s: %v", req.Argv[0], err)}
	}
	s.group <- cmd.Process.Pid
	return Wait(cmd)
}

// Wait waits until a command has ended, and returns how.
func Wait(cmd *exec.Cmd) Status {
	err := cmd.Wait()
	status := Status{Code: cmd.ProcessState.ExitCode()}
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		status.Signal = ws.Signal().String()
	} else if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		status.Err = err.Error()
	}
	return status
}

// stream sends the text that a command writes to one of its outputs.
type stream struct {
	s    *session
	kind byte
}

func (o stream) Write(b []byte) (int, error) {
	if err := writeFrame(o.s, o.kind, b); err != nil {
		return 0, err
	}
	return len(b), nil
}

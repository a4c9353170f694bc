package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/adverb-rdma/adverb/internal/benchdata"
)

// outside is how another project's program measures a workload. Its server and client are processes
// in the places where ours would be.
type outside struct {
	server, client []string // command lines
	env            []string

	// perOp is how many operations it makes for each that it measures: the others are its warm-up.
	perOp float64

	// rate reads the client's output, and returns operations per second. An operation of a ping-pong
	// is there and back.
	rate func(output string) (float64, error)
}

// Such a program makes a number of operations. In the first round it makes firstOperations, and as
// many as that shows to be right. An operation takes at most some milliseconds on a busy machine, which
// bounds the time that is lost.
const (
	firstOperations = 200
	minOperations   = 20
	maxOperations   = 100e6
)

// measureOutside measures by another project's programs. command returns how they make n operations,
// with a server that listens on a TCP port.
func measureOutside(command func(c *cell, port, n int) outside) func(context.Context, *cell) (benchdata.Cell, error) {
	return func(ctx context.Context, c *cell) (benchdata.Cell, error) {
		ctx, cancel := context.WithTimeout(ctx, c.limit())
		defer cancel()
		perSecond := c.perSecond
		// Two trials: the first tells the order of magnitude, with all costs of the start in it.
		for n := firstOperations; perSecond == 0; n *= 10 {
			rate, _, err := c.runOutside(ctx, command, n)
			if err != nil {
				return benchdata.Cell{}, err
			}
			if n > firstOperations || float64(n)/rate > c.time.Seconds()/10 {
				perSecond = rate
			}
		}
		n := int(min(max(perSecond*c.time.Seconds(), minOperations), maxOperations))
		rate, all, err := c.runOutside(ctx, command, n)
		if err != nil {
			return benchdata.Cell{}, err
		}
		d := time.Duration(float64(n) / rate * float64(time.Second))
		got := benchdata.Cell{Value: c.w.value(int64(n), d), Ops: int64(n), Seconds: d.Seconds()}
		if few := n / fewPart; c.w.kind.isLatency() && few > 0 {
			_, begin, err := c.runOutside(ctx, command, few)
			if err != nil {
				return benchdata.Cell{}, err
			}
			got.CPU = all.without(begin, float64(n)/float64(n-few)/command(c, 0, n).perOp)
		}
		return got, nil
	}
}

// fewPart is the part of the operations that is made once more, to know the CPU time of the start and the end.
const fewPart = 16

// ends are the CPU times of whole processes.
type ends struct{ client, server time.Duration }

// without returns the CPU time of the measured operations: the time without start and end, and of that the share of
// the measured ones. It is nil where nothing is left.
func (e ends) without(begin ends, share float64) *benchdata.CPU {
	client, server := (e.client-begin.client).Seconds()*share, (e.server-begin.server).Seconds()*share
	if client <= 0 || server <= 0 {
		return nil
	}
	return &benchdata.CPU{Client: client, Server: server}
}

// runOutside runs server and client once.
func (c *cell) runOutside(ctx context.Context, command func(c *cell, port, n int) outside, n int) (rate float64, cpu ends, err error) {
	port, err := freePort(c.site.ends[atServer].addr)
	if err != nil {
		return 0, cpu, err
	}
	o := command(c, port, n)
	var serverSays, clientSays bytes.Buffer
	server := exec.CommandContext(ctx, o.server[0], o.server[1:]...)
	server.Env, server.Stdout, server.Stderr = append(os.Environ(), o.env...), &serverSays, &serverSays
	if err := c.site.ends[atServer].start(server); err != nil {
		return 0, cpu, err
	}
	gone := make(chan struct{})
	go func() {
		server.Wait() // its client tells how it went
		close(gone)
	}()
	defer func() {
		server.Process.Kill()
		<-gone
	}()
	if err := awaitListener(ctx, server.Process.Pid, port, gone); err != nil {
		return 0, cpu, fmt.Errorf("%s: %w: %s", o.server[0], err, lastLine(serverSays.String()))
	}
	client := exec.CommandContext(ctx, o.client[0], o.client[1:]...)
	client.Env, client.Stderr = server.Env, &clientSays
	var output bytes.Buffer
	client.Stdout = &output
	if err := c.site.ends[atClient].start(client); err != nil {
		return 0, cpu, err
	}
	if err := client.Wait(); err != nil {
		if ctx.Err() == context.DeadlineExceeded {
			return 0, cpu, fmt.Errorf("%s: %d operations are not done after %v", o.client[0], n, c.limit())
		}
		return 0, cpu, fmt.Errorf("%s: %w: %s", o.client[0], err, lastLine(output.String()+"\n"+clientSays.String()))
	}
	cpu.client = client.ProcessState.SystemTime() + client.ProcessState.UserTime()
	if cpu.server = cpuClockOf(server.Process.Pid).read(); cpu.server == 0 { // it is gone, or this system does not tell while it runs
		server.Process.Kill()
		<-gone
		cpu.server = server.ProcessState.SystemTime() + server.ProcessState.UserTime()
	}
	rate, err = o.rate(output.String())
	if err == nil && !(rate > 0) {
		err = errors.New("it reports a rate of nothing")
	}
	if err != nil {
		return 0, cpu, fmt.Errorf("%s: %w", o.client[0], err)
	}
	return rate, cpu, nil
}

// lastLine is the last line of a program's output that is not empty.
func lastLine(output string) string {
	output = strings.TrimSpace(output)
	return output[strings.LastIndexByte(output, '\n')+1:]
}

// freePort returns a TCP port that was free a moment ago. It looks on the loopback interface: a
// namespace that we made has no other programs.
func freePort(addr string) (int, error) {
	if ip := net.ParseIP(addr); ip == nil || !ip.IsLoopback() {
		addr = "127.0.0.1"
	}
	l, err := net.Listen("tcp", net.JoinHostPort(addr, "0"))
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// listenerPatience is the time between two looks for a listener. A connection on trial would take the
// place of the one client that these servers serve.
const listenerPatience = 5 * time.Millisecond

// awaitListener waits until a TCP port is listened on in the network namespace of a process.
func awaitListener(ctx context.Context, pid, port int, gone <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	tick := time.NewTicker(listenerPatience)
	defer tick.Stop()
	for {
		for _, file := range []string{"tcp", "tcp6"} {
			table, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "net", file))
			if err == nil && listens(string(table), port) {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-gone:
			return errors.New("it ended too early")
		case <-ctx.Done():
			return fmt.Errorf("it does not listen on TCP port %d", port)
		}
	}
}

// listens reports whether a table like /proc/net/tcp has a listener on a port.
func listens(table string, port int) bool {
	const listen = "0A" // TCP_LISTEN
	suffix := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(table) {
		if f := strings.Fields(line); len(f) > 3 && f[3] == listen && strings.HasSuffix(f[1], suffix) {
			return true
		}
	}
	return false
}

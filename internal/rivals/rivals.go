// Package rivals is what benchmarks share that compare programs on package rsocket with the same programs on Go's TCP:
// between two processes, over loopback, in one run. Tests only.
package rivals

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/rsocket"
)

// All are the networks: Go's TCP, and package rsocket. With ADVERB_SHM=0 the latter goes by UDP, else by shared memory.
var All = [2]struct {
	listen func() (net.Listener, error)
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
}{
	{func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }, func(ctx context.Context, _, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}},
	{func() (net.Listener, error) { return rsocket.Listen("rsocket", "127.0.0.1:0") }, rsocket.DialContext},
}

// envServe tells a process to serve a benchmark: a rival's number, a service and a size.
const envServe = "ADVERB_RIVALS_SERVE"

// Serve is what TestServe does, which is no test but the other process of a benchmark. It serves until its standard
// input ends.
func Serve(t *testing.T, serve func(l net.Listener, service string, size int)) {
	var rival, size int
	var service string
	if _, err := fmt.Sscan(os.Getenv(envServe), &rival, &service, &size); err != nil {
		t.Skipf("%s asks for nothing", envServe)
	}
	l, err := All[rival].listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fmt.Println("at", l.Addr())
	go serve(l, service, size)
	io.Copy(io.Discard, os.Stdin)
}

// Start starts the other process, whose TestServe calls Serve, and returns where it listens.
func Start(b *testing.B, rival int, service string, size int) (addr string) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestServe$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s %d", envServe, rival, service, size))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if a, ok := strings.CutPrefix(lines.Text(), "at "); ok {
			return a
		}
	}
	b.Fatal("the other process has said nothing")
	return ""
}

// Turns is how often each network has its turn, so that the machine's moods are shared out.
const Turns = 4

// ByTurns does b.N operations on each network, in so many turns, and reports how many times as fast package rsocket
// is. run does n of them on a rival.
func ByTurns(b *testing.B, turns int, run func(rival, n int) error) {
	var took [2]time.Duration
	for turn := range turns {
		n := (b.N*(turn+1))/turns - b.N*turn/turns
		for i := range All {
			start := time.Now()
			if err := run(i, n); err != nil {
				b.Fatal(err)
			}
			took[i] += time.Since(start)
		}
	}
	b.ReportMetric(took[0].Seconds()*1e9/float64(b.N), "tcp-ns/op")
	b.ReportMetric(took[1].Seconds()*1e9/float64(b.N), "rsocket-ns/op")
	b.ReportMetric(took[0].Seconds()/took[1].Seconds(), "×tcp")
}

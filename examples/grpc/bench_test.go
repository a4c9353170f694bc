package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/rsocket"
)

// rivals are the networks that BenchmarkUnary compares: Go's TCP, and package rsocket. Both are over loopback, between
// two processes. With ADVERB_SHM=0 rsocket goes by UDP, else by shared memory.
var rivals = []struct {
	name   string
	listen func() (net.Listener, error)
	dial   func(ctx context.Context, network, addr string) (net.Conn, error)
}{
	{"tcp", func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }, func(ctx context.Context, _, addr string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}},
	{"rsocket", func() (net.Listener, error) { return rsocket.Listen("rsocket", "127.0.0.1:0") }, rsocket.DialContext},
}

// envServe tells a process to serve a benchmark, by the name of a rival.
const envServe = "GRPC_SERVE"

// TestServe is no test but the other process of a benchmark. It serves until its standard input ends.
func TestServe(t *testing.T) {
	for _, r := range rivals {
		if os.Getenv(envServe) != r.name {
			continue
		}
		l, err := r.listen()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("at", l.Addr())
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
		serve(ctx, l)
		return
	}
	t.Skipf("%s asks for nothing", envServe)
}

// startServer starts the other process, and returns where it listens.
func startServer(b *testing.B, rival string) (addr string) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestServe$")
	cmd.Env, cmd.Stderr = append(os.Environ(), envServe+"="+rival), os.Stderr
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

// BenchmarkUnary makes calls of 1 KiB, by one caller and by several at a time, on both networks by turns. It reports
// how many times as many package rsocket makes.
func BenchmarkUnary(b *testing.B) {
	text := strings.Repeat("x", 1<<10)
	for _, callers := range []int{1, 16} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			var clients [2]client
			for i, r := range rivals {
				conn, err := dialBy(r.dial, startServer(b, r.name))
				if err != nil {
					b.Fatal(err)
				}
				defer conn.Close()
				clients[i] = client{conn}
			}
			call := func(i, n int) {
				var left atomic.Int64
				left.Store(int64(n))
				var work sync.WaitGroup
				defer work.Wait()
				for range callers {
					work.Go(func() {
						for left.Add(-1) >= 0 {
							if got, err := clients[i].upper(b.Context(), text); err != nil || len(got) != len(text) {
								b.Errorf("a call: %d bytes, error %v", len(got), err)
								return
							}
						}
					})
				}
			}
			var took [2]time.Duration
			const turns = 4 // the machine's moods are shared out
			for i := range clients {
				call(i, callers)
			}
			b.ResetTimer()
			for turn := range turns {
				n := (b.N*(turn+1))/turns - b.N*turn/turns
				for i := range clients {
					start := time.Now()
					call(i, n)
					took[i] += time.Since(start)
				}
			}
			b.ReportMetric(float64(b.N)/took[0].Seconds(), "tcp-calls/s")
			b.ReportMetric(float64(b.N)/took[1].Seconds(), "rsocket-calls/s")
			b.ReportMetric(took[0].Seconds()/took[1].Seconds(), "×tcp")
		})
	}
}

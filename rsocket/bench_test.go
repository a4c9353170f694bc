package rsocket_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/rsocket"
)

// rivals are the networks that a benchmark compares in one run: Go's TCP, and this package. Both are over loopback,
// between two processes. With ADVERB_SHM=0 this package goes by UDP, else by shared memory.
var rivals = []struct {
	name   string
	listen func() (net.Listener, error)
	dial   func(network, address string) (net.Conn, error)
}{
	{"tcp", func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }, net.Dial},
	{"rsocket", func() (net.Listener, error) { return rsocket.Listen("rsocket", "127.0.0.1:0") }, rsocket.Dial},
}

// services are what the other process does with its listener.
var services = map[string]func(l net.Listener, size int){
	"echo": func(l net.Listener, size int) {
		serve(l, func(c net.Conn) {
			buf := make([]byte, size)
			for {
				if _, err := io.ReadFull(c, buf); err != nil {
					return
				}
				if _, err := c.Write(buf); err != nil {
					return
				}
			}
		})
	},
	"sink": func(l net.Listener, size int) { // says when size bytes have come, and again
		serve(l, func(c net.Conn) {
			buf := make([]byte, 256<<10)
			for got := 0; ; {
				n, err := c.Read(buf)
				if err != nil {
					return
				}
				for got += n; got >= size; got -= size {
					c.Write(buf[:1])
				}
			}
		})
	},
	"http": func(l net.Listener, size int) {
		body := bytes.Repeat([]byte("0123456789abcdef"), size/16)
		http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(body) }))
	},
}

// serve accepts one connection.
func serve(l net.Listener, each func(net.Conn)) {
	if c, err := l.Accept(); err == nil {
		defer c.Close()
		each(c)
	}
}

// envServe tells a process to serve a benchmark: a rival's number, a service and a size.
const envServe = "RSOCKET_SERVE"

// TestServe is no test but the other process of a benchmark. It serves until its standard input ends.
func TestServe(t *testing.T) {
	var rival, size int
	var service string
	if _, err := fmt.Sscan(os.Getenv(envServe), &rival, &service, &size); err != nil {
		t.Skipf("%s asks for nothing", envServe)
	}
	l, err := rivals[rival].listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fmt.Println("at", l.Addr())
	go services[service](l, size)
	io.Copy(io.Discard, os.Stdin)
}

// start starts the other process, and returns where it listens.
func start(b *testing.B, rival int, service string, size int) (addr string) {
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

// compare runs a benchmark on both networks by turns. run does n operations on a connection, whose other end a
// service has.
func compare(b *testing.B, bytesPerOp int64, service string, size int, run func(c net.Conn, n int) error) {
	var conns [2]net.Conn
	for i, r := range rivals {
		var err error
		if conns[i], err = r.dial("tcp", start(b, i, service, size)); err != nil {
			b.Fatal(err)
		}
		defer conns[i].Close()
		if err := run(conns[i], 1); err != nil { // pages, windows
			b.Fatal(err)
		}
	}
	b.SetBytes(bytesPerOp)
	b.ResetTimer()
	byTurns(b, turns, func(i, n int) error { return run(conns[i], n) })
}

// turns is how often each network has its turn, so that the machine's moods are shared out.
const turns = 4

// byTurns does b.N operations on each network, in so many turns, and reports how many times as fast this package is.
// run does n of them on network i.
func byTurns(b *testing.B, turns int, run func(i, n int) error) {
	var took [2]time.Duration
	for turn := range turns {
		n := (b.N*(turn+1))/turns - b.N*turn/turns
		for i := range rivals {
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

func BenchmarkEcho(b *testing.B) {
	for _, size := range []int{1, 1 << 10, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			buf := make([]byte, size)
			compare(b, int64(2*size), "echo", size, func(c net.Conn, n int) error {
				for range n {
					if _, err := c.Write(buf); err != nil {
						return err
					}
					if _, err := io.ReadFull(c, buf); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

func BenchmarkBulk(b *testing.B) {
	const size = 1 << 20
	block := make([]byte, size)
	compare(b, size, "sink", size, func(c net.Conn, n int) error {
		failed := make(chan error, 1)
		go func() {
			for range n {
				if _, err := c.Write(block); err != nil {
					failed <- err
					return
				}
			}
			failed <- nil
		}()
		if _, err := io.ReadFull(c, make([]byte, n)); err != nil {
			return err
		}
		return <-failed
	})
}

// HTTP GET of bodies of 1 MiB: one after the other, and with pauses as long as the other network's GET takes, in which
// all goroutines fall asleep.
func BenchmarkHTTP(b *testing.B) {
	const size = 1 << 20
	for _, style := range []struct {
		name  string
		turns func(n int) int
	}{
		{"row", func(int) int { return turns }},
		{"pauses", func(n int) int { return n }},
	} {
		b.Run(style.name, func(b *testing.B) {
			var clients [2]*http.Client
			var urls [2]string
			get := func(i, n int) error {
				for range n {
					resp, err := clients[i].Get(urls[i])
					if err != nil {
						return err
					}
					n, err := io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					if err == nil && n != size {
						err = fmt.Errorf("%d bytes", n)
					}
					if err != nil {
						return err
					}
				}
				return nil
			}
			for i, r := range rivals {
				transport := &http.Transport{DialContext: func(_ context.Context, network, address string) (net.Conn, error) { return r.dial(network, address) }}
				defer transport.CloseIdleConnections()
				clients[i], urls[i] = &http.Client{Transport: transport}, "http://"+start(b, i, "http", size)
				if err := get(i, 1); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(size)
			b.ResetTimer()
			byTurns(b, style.turns(b.N), get)
		})
	}
}

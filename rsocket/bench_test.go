package rsocket_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/adverb-rdma/adverb/internal/rivals"
)

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

// TestServe is no test but the other process of a benchmark.
func TestServe(t *testing.T) {
	rivals.Serve(t, func(l net.Listener, service string, size int) { services[service](l, size) })
}

// compare runs a benchmark on both networks by turns. run does n operations on a connection, whose other end a
// service has.
func compare(b *testing.B, bytesPerOp int64, service string, size int, run func(c net.Conn, n int) error) {
	var conns [2]net.Conn
	for i, r := range rivals.All {
		var err error
		if conns[i], err = r.Dial(b.Context(), "tcp", rivals.Start(b, i, service, size)); err != nil {
			b.Fatal(err)
		}
		defer conns[i].Close()
		if err := run(conns[i], 1); err != nil { // pages, windows
			b.Fatal(err)
		}
	}
	b.SetBytes(bytesPerOp)
	b.ResetTimer()
	rivals.ByTurns(b, rivals.Turns, func(i, n int) error { return run(conns[i], n) })
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
		{"row", func(int) int { return rivals.Turns }},
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
			for i, r := range rivals.All {
				transport := &http.Transport{DialContext: r.Dial}
				defer transport.CloseIdleConnections()
				clients[i], urls[i] = &http.Client{Transport: transport}, "http://"+rivals.Start(b, i, "http", size)
				if err := get(i, 1); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(size)
			b.ResetTimer()
			rivals.ByTurns(b, style.turns(b.N), get)
		})
	}
}

package rsocket_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/rsocket"
)

// rivals are the networks that a benchmark compares in one run: Go's TCP, and this package. Both are over loopback.
var rivals = []struct {
	name   string
	listen func() (net.Listener, error)
	dial   func(network, address string) (net.Conn, error)
}{
	{"tcp", func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }, net.Dial},
	{"rsocket", func() (net.Listener, error) { return rsocket.Listen("rsocket", "127.0.0.1:0") }, rsocket.Dial},
}

// compare runs a benchmark on both networks by turns, and reports how many times as fast this package is.
// run does n operations on a connection, whose other end serve has.
func compare(b *testing.B, bytesPerOp int64, serve func(net.Conn), run func(c net.Conn, n int) error) {
	var took [2]time.Duration
	var conns [2]net.Conn
	for i, r := range rivals {
		l, err := r.listen()
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		go func() {
			if c, err := l.Accept(); err == nil {
				defer c.Close()
				serve(c)
			}
		}()
		if conns[i], err = r.dial("tcp", l.Addr().String()); err != nil {
			b.Fatal(err)
		}
		defer conns[i].Close()
		if err := run(conns[i], 1); err != nil { // pages, windows
			b.Fatal(err)
		}
	}
	b.SetBytes(bytesPerOp)
	b.ResetTimer()
	const turns = 4 // the machine's moods are shared out
	for turn := range turns {
		n := (b.N*(turn+1))/turns - b.N*turn/turns
		for i := range conns {
			start := time.Now()
			if err := run(conns[i], n); err != nil {
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
			echo := func(c net.Conn) {
				buf := make([]byte, size)
				for {
					if _, err := io.ReadFull(c, buf); err != nil {
						return
					}
					if _, err := c.Write(buf); err != nil {
						return
					}
				}
			}
			buf := make([]byte, size)
			compare(b, int64(2*size), echo, func(c net.Conn, n int) error {
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
	sink := func(c net.Conn) { // says when all of an operation's bytes have come
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
	}
	compare(b, size, sink, func(c net.Conn, n int) error {
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

// HTTP GET of bodies of 1 MiB.
func BenchmarkHTTP(b *testing.B) {
	body := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	var took [2]time.Duration
	var clients [2]*http.Client
	var urls [2]string
	get := func(i int) error {
		resp, err := clients[i].Get(urls[i])
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		n, err := io.Copy(io.Discard, resp.Body)
		if err == nil && n != int64(len(body)) {
			err = fmt.Errorf("%d bytes", n)
		}
		return err
	}
	for i, r := range rivals {
		l, err := r.listen()
		if err != nil {
			b.Fatal(err)
		}
		server := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(body) })}
		go server.Serve(l)
		defer server.Close()
		transport := &http.Transport{DialContext: func(_ context.Context, network, address string) (net.Conn, error) { return r.dial(network, address) }}
		defer transport.CloseIdleConnections()
		clients[i], urls[i] = &http.Client{Transport: transport}, "http://"+l.Addr().String()
		if err := get(i); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(len(body)))
	b.ResetTimer()
	for range b.N {
		for i := range clients {
			start := time.Now()
			if err := get(i); err != nil {
				b.Fatal(err)
			}
			took[i] += time.Since(start)
		}
	}
	b.ReportMetric(took[0].Seconds()*1e9/float64(b.N), "tcp-ns/op")
	b.ReportMetric(took[1].Seconds()*1e9/float64(b.N), "rsocket-ns/op")
	b.ReportMetric(took[0].Seconds()/took[1].Seconds(), "×tcp")
}

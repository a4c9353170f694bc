package rsocket_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/adverb-rdma/adverb/internal/rivals"
)

// services are the other process's programs for its listener.
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
	"copy": func(l net.Listener, size int) { // copies the bytes that come, and says when all that were announced have
		serve(l, func(c net.Conn) { io.Copy(&taker{c: c, block: make([]byte, size)}, c) })
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

// io.Copy at both ends, from memory and to memory.
func BenchmarkCopy(b *testing.B) {
	const size = 1 << 20
	block := make([]byte, size)
	compare(b, size, "copy", size, func(c net.Conn, n int) error {
		if n == 0 {
			return nil
		}
		var announced [8]byte
		binary.BigEndian.PutUint64(announced[:], uint64(n)*size)
		if _, err := c.Write(announced[:]); err != nil {
			return err
		}
		if _, err := io.Copy(c, &giver{block, n * size}); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 1))
		return err
	})
}

// giver is a source of so many bytes.
type giver struct {
	block []byte
	left  int
}

func (g *giver) Read(b []byte) (int, error) {
	if g.left == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), g.left)], g.block)
	g.left -= n
	return n, nil
}

// taker takes as many bytes as the 8 before them announce, says so, and begins anew.
type taker struct {
	c         net.Conn
	block     []byte
	announced []byte
	left      int
}

func (t *taker) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		if t.left == 0 {
			n := min(8-len(t.announced), len(rest))
			t.announced, rest = append(t.announced, rest[:n]...), rest[n:]
			if len(t.announced) == 8 {
				t.left, t.announced = int(binary.BigEndian.Uint64(t.announced)), t.announced[:0]
			}
			continue
		}
		n := copy(t.block, rest[:min(len(rest), t.left)])
		rest = rest[n:]
		if t.left -= n; t.left == 0 {
			if _, err := t.c.Write([]byte{1}); err != nil {
				return 0, err
			}
		}
	}
	return len(b), nil
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

package rnic

import (
	"io"
	"net"
	"runtime"
	"slices"
	"sync"

	"github.com/adverb-rdma/adverb/internal/mem"
)

// connSocket is a socket by a connection of any kind. It has a buffer for each direction.
type connSocket struct {
	conn net.Conn
	s    *stream

	mu     sync.Mutex
	room   sync.Cond // the write buffer has shrunk, or the socket is closed
	in     []byte    // read, and not fetched
	inErr  error
	out    []byte // written, and not sent
	outErr error
	moving bool // a goroutine sends out
	fin    bool // nothing follows out
	closed bool

	waiting bool // a goroutine waits for room, under the QP's lock
}

// A connSocket reads up to connBuffer bytes ahead.
const connBuffer = 512 << 10

func newConnSocket(of *stream, c net.Conn) *connSocket {
	s := &connSocket{conn: c, s: of}
	s.room.L = &s.mu
	return s
}

func (s *connSocket) looks() bool { return false }

func (s *connSocket) readv(bufs [][]byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.in
	for _, b := range bufs {
		k := min(len(b), len(in))
		if err := mem.Copy(b[:k], in[:k]); err != nil {
			return 0, err
		}
		in = in[k:]
		n += k
	}
	s.in = in
	switch {
	case n > 0:
		return n, nil
	case s.inErr != nil:
		return 0, s.inErr
	}
	return 0, errAgain
}

func (s *connSocket) start() {
	s.s.q.dev.streams.Go(s.read)
}

// readable reads the bytes that are there. It returns true at the end of the stream.
func (s *connSocket) readable() bool {
	of := s.s
	for {
		of.q.mu.Lock()
		more := of.readTurn(of.q.dev.turn, true)
		over := of.quiet
		of.q.mu.Unlock()
		if !more {
			return over
		}
		runtime.Gosched()
	}
}

// read fetches the stream's bytes from the connection, until the end.
func (s *connSocket) read() {
	buf := make([]byte, readSize)
	for {
		n, err := s.conn.Read(buf)
		s.mu.Lock()
		s.in, s.inErr = buf[:n], err
		s.mu.Unlock()
		for {
			if s.readable() {
				return
			}
			s.mu.Lock()
			left := len(s.in)
			s.mu.Unlock()
			if left == 0 {
				break
			}
		}
		if err != nil {
			return
		}
	}
}

func (s *connSocket) writev(bufs [][]byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.outErr != nil {
		return 0, s.outErr
	}
	out := s.out
	for _, b := range bufs {
		end := len(out)
		b = b[:min(len(b), connBuffer-end)]
		out = slices.Grow(out, len(b))[:end+len(b)]
		if err := mem.Copy(out[end:], b); err != nil {
			return 0, err
		}
		n += len(b)
	}
	s.out = out
	s.move()
	if n == 0 {
		return 0, errAgain
	}
	return n, nil
}

// move has a goroutine send the bytes in the buffer, until the buffer is empty.
func (s *connSocket) move() {
	if s.moving || len(s.out) == 0 && !s.fin {
		return
	}
	s.moving = true
	go func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for len(s.out) > 0 && s.outErr == nil {
			b := s.out
			s.out = nil
			s.mu.Unlock()
			_, err := s.conn.Write(b)
			s.mu.Lock()
			s.outErr = err
			s.room.Broadcast()
		}
		s.moving = false
		if s.fin {
			finish(s.conn)
		}
	}()
}

// finish says that nothing follows. A connection that cannot be half closed is closed.
func finish(c net.Conn) {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		_ = w.CloseWrite()
		return
	}
	_ = c.Close()
}

func (s *connSocket) awaitRoom() {
	if s.waiting {
		return
	}
	s.waiting = true
	s.s.q.dev.streams.Go(s.write)
}

// writable has the stream write, and returns true once nothing waits any more.
func (s *connSocket) writable() bool {
	of := s.s
	of.q.mu.Lock()
	defer of.q.mu.Unlock()
	of.room()
	s.waiting = of.blocked && of.q.s == of
	return !s.waiting
}

// write has the stream write whenever there may be room, until nothing waits any more.
func (s *connSocket) write() {
	for !s.writable() {
		s.mu.Lock()
		for len(s.out) >= connBuffer && s.outErr == nil && !s.closed {
			s.room.Wait()
		}
		over := s.closed
		s.mu.Unlock()
		if over {
			return
		}
	}
}

func (s *connSocket) closeWrite() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fin = true
	s.move()
	return nil
}

func (s *connSocket) close() error {
	s.mu.Lock()
	s.closed = true
	if s.inErr == nil {
		s.inErr = io.EOF
	}
	s.room.Broadcast()
	s.mu.Unlock()
	go s.conn.Close() // Close may wait for a Write that is under way
	return nil
}

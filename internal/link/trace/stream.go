package trace

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// Stream returns the connection with lines for its bytes: the function of each direction is given that direction's
// bytes in order, and returns a line for each message. Each line goes to w in one Write, with the name of the device
// and the time since zero.
func Stream(c net.Conn, w io.Writer, device string, zero time.Time, sent, received func([]byte) []string) net.Conn {
	return &stream{Conn: c, w: w, device: device, zero: zero, sent: sent, received: received}
}

type stream struct {
	net.Conn
	w      io.Writer
	device string
	zero   time.Time

	mu             sync.Mutex
	sent, received func([]byte) []string
}

// Read implements net.Conn.
func (s *stream) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	s.show(s.received, "<-", b[:n])
	return n, err
}

// Write implements net.Conn.
func (s *stream) Write(b []byte) (int, error) {
	s.show(s.sent, "->", b)
	return s.Conn.Write(b)
}

// NetConn returns the connection inside, as that of package tls does, for its options.
func (s *stream) NetConn() net.Conn { return s.Conn }

// CloseWrite passes the end of the written bytes on.
func (s *stream) CloseWrite() error {
	if c, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return s.Conn.Close()
}

func (s *stream) show(describe func([]byte) []string, arrow string, b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var text strings.Builder
	for _, line := range describe(b) {
		fmt.Fprintf(&text, "%.6f %s %v %s %v %s\n", time.Since(s.zero).Seconds(), s.device, s.LocalAddr(), arrow, s.RemoteAddr(), line)
	}
	if text.Len() > 0 {
		_, _ = io.WriteString(s.w, text.String())
	}
}

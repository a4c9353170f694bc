package pcap

import (
	"net"
	"net/netip"
	"sync"
)

// segmentSize is how many bytes of a stream a packet of the file has at most. Those on the wire are smaller.
const segmentSize = 32 << 10

// Stream returns the connection with its bytes recorded, as TCP segments that are made up: the handshake, the bytes
// written and read, and the end. A connection without IP addresses is not recorded.
func (w *Writer) Stream(c net.Conn) net.Conn {
	local, ok1 := c.LocalAddr().(*net.TCPAddr)
	remote, ok2 := c.RemoteAddr().(*net.TCPAddr)
	if !ok1 || !ok2 {
		return c
	}
	s := &recordedStream{Conn: c, w: w, local: local.AddrPort(), remote: remote.AddrPort()}
	w.mu.Lock()
	if w.usable() {
		var err error
		s.iface, err = w.file.addInterface(s.local.String(), linkTypeRaw)
		w.fail(err)
	}
	w.mu.Unlock()
	s.segment(true, tcpSYN, nil)
	s.segment(false, tcpSYN|tcpACK, nil)
	s.segment(true, tcpACK, nil)
	_ = w.Flush()
	return s
}

// recordedStream is the connection that Stream makes.
type recordedStream struct {
	net.Conn
	w             *Writer
	iface         int
	local, remote netip.AddrPort

	mu       sync.Mutex
	out, in  uint32 // sequence numbers
	finished bool
}

// Read implements net.Conn.
func (s *recordedStream) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if n > 0 && !s.w.outgoingOnly {
		s.data(false, b[:n])
	}
	return n, err
}

// Write implements net.Conn.
func (s *recordedStream) Write(b []byte) (int, error) {
	s.data(true, b)
	return s.Conn.Write(b)
}

// NetConn returns the connection inside, as that of package tls does, for its options.
func (s *recordedStream) NetConn() net.Conn { return s.Conn }

// CloseWrite passes the end of the written bytes on.
func (s *recordedStream) CloseWrite() error {
	s.fin()
	if c, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return s.Conn.Close()
}

// Close implements net.Conn.
func (s *recordedStream) Close() error {
	s.fin()
	return s.Conn.Close()
}

func (s *recordedStream) fin() {
	s.mu.Lock()
	done := s.finished
	s.finished = true
	s.mu.Unlock()
	if !done {
		s.segment(true, tcpFIN|tcpACK, nil)
		_ = s.w.Flush()
	}
}

// data records bytes. The file is whole after each call, since nobody says when a program ends.
func (s *recordedStream) data(outgoing bool, b []byte) {
	defer s.w.Flush()
	for len(b) > 0 {
		n := min(len(b), segmentSize)
		flags := uint8(tcpACK)
		if n == len(b) {
			flags |= tcpPSH
		}
		s.segment(outgoing, flags, b[:n])
		b = b[n:]
	}
}

// segment writes a segment with these flags.
func (s *recordedStream) segment(outgoing bool, flags uint8, payload []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	length := uint32(len(payload))
	if flags&(tcpSYN|tcpFIN) != 0 {
		length++
	}
	src, dst, way := s.local, s.remote, outbound
	tcp := tcpHeader{seq: s.out, ack: s.in, flags: flags}
	if outgoing {
		s.out += length
	} else {
		src, dst, way = dst, src, inbound
		tcp.seq, tcp.ack = s.in, s.out
		s.in += length
	}
	if flags&tcpACK == 0 {
		tcp.ack = 0
	}
	tcp.srcPort, tcp.dstPort = src.Port(), dst.Port()
	ip := ipHeader{src: src.Addr().Unmap(), dst: dst.Addr().Unmap()}
	s.w.writeSegment(s.iface, way, &ip, &tcp, payload)
}

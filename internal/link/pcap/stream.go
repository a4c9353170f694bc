package pcap

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// segmentSize is how many bytes of a stream a packet of the file has at most. Those on the wire are smaller.
const segmentSize = 32 << 10

// Stream returns the connection with its bytes recorded, as TCP segments that are made up: the handshake,
// what is written and read, and the end. A connection without IP addresses is not recorded.
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
		s.iface, err = w.ng.AddInterface(linkInterface(s.local.String()))
		w.fail(err)
	}
	w.mu.Unlock()
	s.segment(true, layers.TCP{SYN: true}, nil)
	s.segment(false, layers.TCP{SYN: true, ACK: true}, nil)
	s.segment(true, layers.TCP{ACK: true}, nil)
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

// CloseWrite passes the end of what is written on.
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
		s.segment(true, layers.TCP{FIN: true, ACK: true}, nil)
		_ = s.w.Flush()
	}
}

// data records bytes. The file is whole after each call, since nobody says when a program ends.
func (s *recordedStream) data(outgoing bool, b []byte) {
	defer s.w.Flush()
	for len(b) > 0 {
		n := min(len(b), segmentSize)
		s.segment(outgoing, layers.TCP{ACK: true, PSH: n == len(b)}, b[:n])
		b = b[n:]
	}
}

// segment writes a segment with the flags of tcp.
func (s *recordedStream) segment(outgoing bool, tcp layers.TCP, payload []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	src, dst, direction := s.local, s.remote, pcapgo.NgEpbFlagDirectionOutbound
	tcp.Seq, tcp.Ack = s.out, s.in
	length := uint32(len(payload))
	if tcp.SYN || tcp.FIN {
		length++
	}
	if outgoing {
		s.out += length
	} else {
		src, dst, direction = dst, src, pcapgo.NgEpbFlagDirectionInbound
		tcp.Seq, tcp.Ack = s.in, s.out
		s.in += length
	}
	if !tcp.ACK {
		tcp.Ack = 0
	}
	tcp.SrcPort, tcp.DstPort, tcp.Window = layers.TCPPort(src.Port()), layers.TCPPort(dst.Port()), 0xffff
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.w.usable() {
		s.w.fail(s.w.writeSegment(s.iface, src.Addr().Unmap(), dst.Addr().Unmap(), &tcp, payload, direction))
	}
}

func (w *Writer) writeSegment(iface int, src, dst netip.Addr, tcp *layers.TCP, payload []byte, direction pcapgo.NgEpbFlag) error {
	var ip gopacket.SerializableLayer
	if src.Is4() && dst.Is4() {
		v4 := &layers.IPv4{Version: 4, Flags: layers.IPv4DontFragment, TTL: hopLimit,
			Protocol: layers.IPProtocolTCP, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
		_ = tcp.SetNetworkLayerForChecksum(v4)
		ip = v4
	} else {
		src, dst := src.As16(), dst.As16()
		v6 := &layers.IPv6{Version: 6, HopLimit: hopLimit, NextHeader: layers.IPProtocolTCP, SrcIP: src[:], DstIP: dst[:]}
		_ = tcp.SetNetworkLayerForChecksum(v6)
		ip = v6
	}
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(w.buffer, options, ip, tcp, gopacket.Payload(payload)); err != nil {
		return err
	}
	packet := w.buffer.Bytes()
	w.dirty = true
	return w.ng.WritePacketWithOptions(
		gopacket.CaptureInfo{Timestamp: time.Now(), CaptureLength: len(packet), Length: len(packet), InterfaceIndex: iface},
		packet, pcapgo.NgPacketOptions{Flags: &pcapgo.NgEpbFlags{Direction: direction}})
}

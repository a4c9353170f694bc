package diagnose_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/diagnose"
	"github.com/adverb-rdma/adverb/internal/link/pcap"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// script writes a conversation packet by packet, as cards have it: identifications count up.
type script struct {
	a, b   netip.Addr
	now    time.Duration
	frames []capture.Frame
	id     uint16
	port   uint16
	class  uint8
	pKey   uint16
	forge  netip.Addr // the source address that the ICRC is made for, if another one
	xrc    bool       // packets of RC are of XRC
	psn    map[uint32]wire.PSN
	sent   [2]uint32 // bytes of TCP from a, and from b
}

func newScript() *script {
	return &script{a: netip.MustParseAddr("10.1.0.1"), b: netip.MustParseAddr("10.1.0.2"), id: 1000, port: 50000, pKey: wire.DefaultPKey, psn: map[uint32]wire.PSN{}}
}

const (
	qpA = 0x11 // of a
	qpB = 0x22 // of b
)

// put appends a frame of raw IP, which was captured up to n bytes; 0 is all.
func (s *script) put(b []byte, n int) int {
	s.now += 10 * time.Microsecond
	f := capture.Frame{Number: len(s.frames) + 1, Time: int64(s.now) + 1e18, Link: capture.LinkRaw, Data: b, Length: len(b)}
	if n > 0 {
		f.Data = b[:min(n, len(b))]
	}
	s.frames = append(s.frames, f)
	return f.Number
}

func ipv4(src, dst netip.Addr, class, protocol uint8, id uint16, n int) []byte {
	b := []byte{0x45, class}
	b = binary.BigEndian.AppendUint16(b, uint16(20+n))
	b = binary.BigEndian.AppendUint16(b, id)
	b = append(b, 0x40, 0, 64, protocol, 0, 0)
	return append(append(b, src.AsSlice()...), dst.AsSlice()...)
}

func ipv6(src, dst netip.Addr, class, protocol uint8, n int) []byte {
	b := []byte{0x60 | class>>4, class << 4, 0, 0}
	b = append(binary.BigEndian.AppendUint16(b, uint16(n)), protocol, 64)
	return append(append(b, src.AsSlice()...), dst.AsSlice()...)
}

func (s *script) bytes(src, dst netip.Addr, w wire.Packet) []byte {
	if w.PKey == 0 {
		w.PKey = s.pKey
	}
	if s.xrc && w.Opcode.Service() == wire.ServiceRC && (w.Opcode | wire.XRC).Valid() {
		w.Opcode |= wire.XRC
		w.XRCETH.SRQN = 0x123456
	}
	s.id++
	datagram := w.AppendTo(nil)
	from := src
	if s.forge.IsValid() {
		from = s.forge
	}
	flow := wire.NewFlow(netip.AddrPortFrom(from, s.port), netip.AddrPortFrom(dst, wire.UDPPort))
	flow.Seal(s.id, datagram)
	var b []byte
	if src.Is4() {
		b = ipv4(src, dst, s.class, 17, s.id, 8+len(datagram))
	} else {
		b = ipv6(src, dst, s.class, 17, 8+len(datagram))
	}
	b = binary.BigEndian.AppendUint16(b, s.port)
	b = binary.BigEndian.AppendUint16(b, wire.UDPPort)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(datagram)))
	return append(append(b, 0, 0), datagram...)
}

// ab sends a packet from a to b's queue pair, and ba the other way.
func (s *script) ab(w wire.Packet) int {
	w.DestQP = orQP(w.DestQP, qpB)
	return s.put(s.bytes(s.a, s.b, w), 0)
}
func (s *script) ba(w wire.Packet) int {
	w.DestQP = orQP(w.DestQP, qpA)
	return s.put(s.bytes(s.b, s.a, w), 0)
}

// damaged sends a packet as ab does, of which a bit is wrong.
func (s *script) damaged(w wire.Packet) {
	w.DestQP = orQP(w.DestQP, qpB)
	b := s.bytes(s.a, s.b, w)
	b[70] ^= 4
	s.put(b, 0)
}

// train sends packets from a to b in one datagram.
func (s *script) train(packets ...wire.Packet) {
	var all []byte
	for i, w := range packets {
		w.DestQP = orQP(w.DestQP, qpB)
		if b := s.bytes(s.a, s.b, w); i == 0 {
			all = b
		} else {
			all = append(all, b[28:]...)
		}
	}
	binary.BigEndian.PutUint16(all[2:], uint16(len(all)))
	binary.BigEndian.PutUint16(all[24:], uint16(len(all)-20))
	s.put(all, 0)
}

func orQP(n, usual uint32) uint32 {
	if n == 0 {
		return usual
	}
	return n
}

func write(psn wire.PSN, op wire.Opcode, n int) wire.Packet {
	return wire.Packet{BTH: wire.BTH{Opcode: op, PSN: psn, AckReq: true}, RETH: wire.RETH{VA: 0x7f00dead0000, RKey: 0x0badcafe, Length: uint32(n)}, Payload: make([]byte, n)}
}

func ack(psn wire.PSN) wire.Packet { return answer(psn, wire.SyndromeACK(31)) }

func answer(psn wire.PSN, s wire.Syndrome) wire.Packet {
	return wire.Packet{BTH: wire.BTH{Opcode: wire.RCAcknowledge, PSN: psn}, AETH: wire.AETH{Syndrome: s, MSN: 1}}
}

// good is n WRITEs that are answered, from a PSN on.
func (s *script) good(psn wire.PSN, n int) {
	for i := range n {
		s.ab(write(psn.Add(i), wire.RCRDMAWriteOnly, 64))
		s.ba(ack(psn.Add(i)))
	}
}

// mad sends a CM message between the QP1s.
func (s *script) mad(back bool, attr wire.CMAttr, m interface{ AppendTo([]byte) []byte }) int {
	h := wire.NewCMHeader(attr, 7)
	w := wire.Packet{BTH: wire.BTH{Opcode: wire.UDSendOnly, DestQP: wire.GSIQPN}, DETH: wire.DETH{QKey: wire.GSIQKey, SrcQP: wire.GSIQPN}, Payload: m.AppendTo(h.AppendTo(nil))}
	if back {
		return s.ba(w)
	}
	return s.ab(w)
}

const (
	idA = 0xaaaa
	idB = 0xbbbb
)

func gidOf(a netip.Addr) [16]byte { return a.As16() }

func (s *script) req(change func(*wire.REQ)) int {
	m := wire.REQ{LocalCommID: idA, ServiceID: wire.RDMAServiceID(wire.PortSpaceTCP, 7471), LocalQPN: qpA, ResponderResources: 4, InitiatorDepth: 4, RemoteCMTimeout: 18, PKey: wire.DefaultPKey,
		MTU: 5, RNRRetryCount: 7, RetryCount: 7, MaxCMRetries: 15, Primary: wire.CMPath{LocalGID: gidOf(s.a), RemoteGID: gidOf(s.b)}}
	if change != nil {
		change(&m)
	}
	return s.mad(false, wire.CMREQ, &m)
}

func (s *script) rep(change func(*wire.REP)) int {
	m := wire.REP{LocalCommID: idB, RemoteCommID: idA, LocalQPN: qpB, ResponderResources: 4, InitiatorDepth: 4, RNRRetryCount: 7}
	if change != nil {
		change(&m)
	}
	return s.mad(true, wire.CMREP, &m)
}

func (s *script) rtu() { s.mad(false, wire.CMRTU, &wire.RTU{LocalCommID: idA, RemoteCommID: idB}) }

func (s *script) connect() { s.req(nil); s.rep(nil); s.rtu() }

func (s *script) dreq() int {
	return s.mad(false, wire.CMDREQ, &wire.DREQ{LocalCommID: idA, RemoteCommID: idB, RemoteQPN: qpB})
}

func (s *script) drep() { s.mad(true, wire.CMDREP, &wire.DREP{LocalCommID: idB, RemoteCommID: idA}) }

func (s *script) rej(reason wire.RejReason, change func(*wire.REJ)) int {
	m := wire.REJ{LocalCommID: idB, RemoteCommID: idA, Reason: reason}
	if change != nil {
		change(&m)
	}
	return s.mad(true, wire.CMREJ, &m)
}

func (s *script) report(o diagnose.Options) *diagnose.Report {
	a := diagnose.New(o)
	for _, f := range s.frames {
		a.Frame(f)
	}
	return a.Report()
}

// file is the conversation as a capture (pcapng).
func (s *script) file(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := pcap.NewFrames(&b, "script")
	if err != nil {
		t.Fatal(err)
	}
	interfaces := map[capture.LinkType]int{}
	for _, f := range s.frames {
		iface, ok := interfaces[f.Link]
		if !ok {
			if iface, err = w.AddInterface("script", uint16(f.Link)); err != nil {
				t.Fatal(err)
			}
			interfaces[f.Link] = iface
		}
		if err := w.Write(iface, time.Unix(0, f.Time), f.Data); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

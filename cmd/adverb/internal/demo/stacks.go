package demo

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/fabric"
	"github.com/adverb-rdma/adverb/internal/ibnet"
	"github.com/adverb-rdma/adverb/internal/iwarp"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/pcap"
	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/mpa"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// The packet of one SEND, as four technologies carry it.

const stacksText = "hello, B"

func sceneStacks(s *stage) {
	v2 := s.carry(stacksText)
	v1 := s.beside(stacksText, (*stage).onRoCEv1)
	near := s.beside(stacksText, (*stage).onInfiniBand)
	far := s.beside(stacksText, (*stage).acrossRouter)
	tcp := s.onIWARP(stacksText)

	s.say("A sends %q to B by one SEND: on InfiniBand within a subnet, on InfiniBand across a router, on RoCEv1, on RoCEv2 and on iWARP. "+
		"Five times the program does the same. Here are the headers of the packet, each with its size in bytes and some of what was in it. "+
		"What a network interface would put around the packet in memory is in parentheses.", stacksText)
	s.drawStacks([]stack{
		s.infiniBandStack("InfiniBand", near), s.infiniBandStack("across a router", far),
		s.roceV1Stack(v1), s.roceV2Stack(v2), s.iwarpStack(tcp),
	})
	s.say("From the BTH to the data the first four are the same, byte for byte: RoCE is InfiniBand's transport on another " +
		"network. The ICRC covers the addresses too, so it differs. iWARP has a transport of its own on TCP, which repeats, orders and acknowledges, so it needs no PSN and no ACK.")
}

// carry has A send a text to B, and returns the packet.
func (s *stage) carry(text string) []byte {
	qa, qb := s.connect(wiring{})
	in, out := s.b.region(64, local, ""), s.a.region(64, local, text)
	s.must(qb.PostOneRecv(1, in.SGE(0, in.Len())))
	s.must(qa.PostOneSend(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{out.SGE(0, len(text))}}))
	s.until(func() bool { return len(s.a.done) > 0 && len(s.b.done) > 0 })
	for _, c := range append(s.a.done, s.b.done...) {
		s.must(c.Err())
	}
	if string(in.Bytes()[:len(text)]) != text {
		s.must(fmt.Errorf("the receive has %q, want %q", in.Bytes()[:len(text)], text))
	}
	if s.cable != nil {
		return s.cable
	}
	return s.firstFrame(nil)
}

// beside does the same on a stage of its own, which opens A and B.
func (s *stage) beside(text string, open func(*stage)) (packet []byte) {
	x := &stage{w: io.Discard, quiet: true, rng: rand.New(rand.NewPCG(sceneSeed, 0))}
	s.must(x.perform(flags{}, open, func(x *stage) { packet = x.carry(text) }))
	s.must(x.close())
	return packet
}

// onRoCEv1 opens A and B with GIDs of RoCEv1.
func (s *stage) onRoCEv1() {
	s.net = s.etherNet()
	s.a = s.open("A", link.V1(netip.AddrFrom4([4]byte{10, 0, 0, 1})), 0xa0000000)
	s.b = s.open("B", link.V1(netip.AddrFrom4([4]byte{10, 0, 0, 2})), 0xb0000000)
}

// onInfiniBand opens A and B at a switch, with the subnet manager beside A.
func (s *stage) onInfiniBand() { s.onFabric(false) }

// acrossRouter opens A and B in two subnets, with a router between them.
func (s *stage) acrossRouter() { s.onFabric(true) }

func (s *stage) onFabric(routed bool) {
	f := fabric.New()
	n := ibnet.New(f)
	join := func(a, b *fabric.Port) { s.must(f.Connect(a, b)) }
	a, b := f.Adapter("A"), f.Adapter("B")
	first := f.Switch("switch", 4)
	join(a, first.Port(1))
	manager := a.Manager(0, 0)
	if second := first; routed {
		second = f.Switch("switch", 4)
		r := f.Router("router", 2)
		join(r.Port(1), first.Port(2))
		join(r.Port(2), second.Port(2))
		join(b, second.Port(1))
		manager.SetPrefix(0xfec0<<48 | 1)
		b.Manager(0, 0).SetPrefix(0xfec0<<48 | 2)
	} else {
		join(b, second.Port(2))
	}
	n.Do(func(*fabric.Fabric) {}) // the managers bring the ports into service
	f.Tap = func(from *fabric.Port, packet []byte) {
		if from == a && s.cable == nil && wire.Opcode(bthOf(packet)[0]) == wire.RCSendOnly {
			s.cable = bytes.Clone(packet)
		}
	}
	s.instant, s.routed = true, routed
	s.a = s.openOn(n.Netdev("demo_A", a), "A", netip.AddrFrom16(a.GID()), 0xa0000000)
	s.b = s.openOn(n.Netdev("demo_B", b), "B", netip.AddrFrom16(b.GID()), 0xb0000000)
}

// bthOf returns a packet of InfiniBand from its BTH on.
func bthOf(packet []byte) []byte {
	if wire.LNH(packet[1]&3) == wire.LNHGlobal {
		return packet[wire.LRHSize+wire.GRHSize:]
	}
	return packet[wire.LRHSize:]
}

// onIWARP has a QP write the SEND into a TCP stream, which goes nowhere, and returns the segment.
func (s *stage) onIWARP(text string) []byte {
	keys := mem.NewKeys(16, s.rng.Uint32)
	pd := keys.NewPD()
	region := must(pd.RegMR(verbs.MRAttr{Buf: []byte(text), Access: local}))
	defer region.Close()
	capacity := verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
	receives := queue.NewRecvQueue(pd, capacity)
	receives.Enter(verbs.QPStateInit)
	q := iwarp.New(iwarp.Config{QPN: 2, Cap: capacity, PD: pd, Receives: receives})
	s.must(q.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: 1}, verbs.MaskState|verbs.MaskPort|verbs.MaskAccessFlags))
	offer := mpa.Offer{CRC: true, IRD: 1, ORD: 1}
	request := offer.Request()
	request.PeerToPeer = false
	reply, _ := offer.Answer(&request)
	s.must(q.Attach(must(offer.Settle(&reply))))
	m := region.(*mem.MR)
	s.must(q.Post(&verbs.SendWR{Op: verbs.OpSend, SGList: []verbs.SGE{{Addr: m.Addr(), Length: uint32(len(text)), LKey: m.LKey()}}}))
	var v iwarp.Vec
	q.Fill(&v, 1<<16)
	written := bytes.Join(v.Bufs, nil)
	q.Wrote(&v, len(written))

	var file bytes.Buffer
	w := must(pcap.New(&file, pcap.Options{OutgoingOnly: true}))
	c := w.Stream(nowhere{from: netip.MustParseAddrPort("10.0.0.1:40000"), to: netip.MustParseAddrPort("10.0.0.2:7471")})
	must(c.Write(written))
	s.must(w.Close())
	return s.firstFrame(&file)
}

// nowhere is a connection that discards all bytes.
type nowhere struct {
	net.Conn
	from, to netip.AddrPort
}

func (n nowhere) LocalAddr() net.Addr         { return net.TCPAddrFromAddrPort(n.from) }
func (n nowhere) RemoteAddr() net.Addr        { return net.TCPAddrFromAddrPort(n.to) }
func (n nowhere) Write(b []byte) (int, error) { return len(b), nil }

// firstFrame returns the first frame of a capture that has more than headers of TCP. nil stands for the stage's own.
func (s *stage) firstFrame(file *bytes.Buffer) []byte {
	if file == nil {
		s.must(s.captures.flush())
		file = &s.captures.frames
	}
	r := must(capture.NewReader(file))
	for {
		f := must(r.Next())
		if f.Link != capture.LinkRaw || len(f.Data) > ipv4Size+tcpSize {
			return bytes.Clone(f.Data)
		}
	}
}

// Sizes of headers that package wire does not know.
const (
	etherSize = 14
	fcsSize   = 4
	ipv4Size  = 20
	udpSize   = 8
	tcpSize   = 20
	mpaSize   = 2
	crcSize   = 4
)

// stack is the headers of a packet.
type stack struct {
	name   string
	layers [numParts][]layer
	size   int // bytes
}

// The parts of a packet, from outside to inside, and the checksums behind it.
const (
	partLink = iota
	partNetwork
	partTransport
	partData
	partChecks
	numParts
)

var partNames = [numParts]string{"link", "network", "transport", "data", "checks"}

// layer is a header, with its size in bytes and some of its fields. An added one is a network interface's.
type layer struct {
	name   string
	size   int
	fields []string
	added  bool
}

func (s *stage) infiniBandStack(name string, b []byte) stack {
	t := stack{name: name, size: len(b)}
	h := must(wire.DecodeLRH(b))
	t.add(partLink, "LRH", wire.LRHSize, fmt.Sprintf("LID %d to %d", h.SLID, h.DLID), fmt.Sprintf("SL %d, VL %d", h.SL, h.VL))
	if h.LNH == wire.LNHGlobal {
		s.addGRH(&t, b[wire.LRHSize:])
	}
	s.addTransport(&t, bthOf(b[:len(b)-wire.VCRCSize]))
	t.add(partChecks, "VCRC", wire.VCRCSize, "of each cable")
	return t
}

func (s *stage) roceV1Stack(b []byte) stack {
	t := stack{name: "RoCEv1", size: len(b) + fcsSize}
	t.add(partLink, "Ethernet", etherSize, fmt.Sprintf("type %#04x", binary.BigEndian.Uint16(b[etherSize-2:])))
	s.addGRH(&t, b[etherSize:])
	s.addTransport(&t, b[etherSize+wire.GRHSize:])
	t.addFCS()
	return t
}

func (s *stage) roceV2Stack(b []byte) stack {
	t := stack{name: "RoCEv2", size: etherSize + len(b) + fcsSize}
	t.addEthernet()
	t.addIP(b)
	t.add(partNetwork, "UDP", udpSize, fmt.Sprintf("to port %d", binary.BigEndian.Uint16(b[ipv4Size+2:])))
	s.addTransport(&t, b[ipv4Size+udpSize:])
	t.addFCS()
	return t
}

func (s *stage) iwarpStack(b []byte) stack {
	t := stack{name: "iWARP", size: etherSize + len(b) + fcsSize}
	t.addEthernet()
	t.addIP(b)
	t.add(partTransport, "TCP", tcpSize, fmt.Sprintf("to port %d", binary.BigEndian.Uint16(b[ipv4Size+2:])))
	b = b[ipv4Size+tcpSize:]
	t.add(partTransport, "MPA", mpaSize, fmt.Sprintf("length %d", binary.BigEndian.Uint16(b)))
	h, n, err := iwarp.DecodeHeader(b[mpaSize:])
	s.must(err)
	t.add(partTransport, "DDP, RDMAP", n, fmt.Sprintf("%v, MSN %d", h.Op, h.MSN))
	data := int(binary.BigEndian.Uint16(b)) - n
	t.add(partData, "data", data, string(b[mpaSize+n:][:data]))
	t.add(partChecks, "CRC of MPA", crcSize)
	t.addFCS()
	return t
}

func (t *stack) add(part int, name string, size int, fields ...string) {
	t.layers[part] = append(t.layers[part], layer{name: name, size: size, fields: fields})
}

func (t *stack) addEthernet() {
	t.layers[partLink] = append(t.layers[partLink], layer{name: "Ethernet", size: etherSize, fields: []string{"type 0x0800"}, added: true})
}

func (t *stack) addFCS() {
	t.layers[partChecks] = append(t.layers[partChecks], layer{name: "FCS", size: fcsSize, fields: []string{"of each cable"}, added: true})
}

func (t *stack) addIP(b []byte) {
	t.add(partNetwork, "IPv4", ipv4Size, fmt.Sprintf("%v", netip.AddrFrom4([4]byte(b[12:]))), fmt.Sprintf("to %v", netip.AddrFrom4([4]byte(b[16:]))))
}

func (s *stage) addGRH(t *stack, b []byte) {
	g := must(wire.DecodeGRH(b))
	end := func(gid [16]byte) string { // what fits into the picture
		text := verbs.GID(gid).String()
		for len(text) > 8 {
			_, text, _ = strings.Cut(text, ":")
		}
		return "…" + text
	}
	t.add(partNetwork, "GRH", wire.GRHSize, "GID "+end(g.SGID), "to "+end(g.DGID), fmt.Sprintf("hop limit %d", g.HopLimit))
}

// addTransport adds the headers and the data from the BTH to the ICRC.
func (s *stage) addTransport(t *stack, b []byte) {
	var p wire.Packet
	s.must(p.Decode(b))
	t.add(partTransport, "BTH", wire.BTHSize, strings.TrimPrefix(fmt.Sprint(p.Opcode), "RC "), fmt.Sprintf("PSN %d", p.PSN))
	t.add(partData, "data", len(p.Payload), string(p.Payload))
	t.add(partChecks, "ICRC", wire.ICRCSize, "end to end")
}

// boxWidth is that of a box, without its borders.
const boxWidth = 16

// drawStacks draws the packets side by side.
func (s *stage) drawStacks(list []stack) {
	if s.quiet {
		return
	}
	row := func(cells []string) {
		var b strings.Builder
		for _, c := range cells {
			b.WriteString(c + strings.Repeat(" ", max(0, boxWidth+3-len([]rune(c)))))
		}
		fmt.Fprintln(s.w, strings.TrimRight(b.String(), " "))
	}
	cells := make([]string, len(list))
	fmt.Fprintln(s.w)
	for i, t := range list {
		cells[i] = " " + t.name
	}
	row(cells)
	for part := range numParts {
		var columns [][]string
		height := 0
		for _, t := range list {
			c := t.box(part)
			columns = append(columns, c)
			height = max(height, len(c))
		}
		fmt.Fprintf(s.w, "%s %s\n", partNames[part], strings.Repeat("-", textWidth-6-len(partNames[part])))
		for line := range height {
			for i, c := range columns {
				if cells[i] = ""; line < len(c) {
					cells[i] = c[line]
				}
			}
			row(cells)
		}
	}
	for i, t := range list {
		cells[i] = fmt.Sprintf(" %d bytes", t.size)
	}
	row(cells)
	fmt.Fprintln(s.w)
}

// box draws the headers of one part of a packet, one below the other.
func (t *stack) box(part int) (lines []string) {
	border := "+" + strings.Repeat("-", boxWidth) + "+"
	for i, l := range t.layers[part] {
		if i == 0 {
			lines = append(lines, border)
		}
		name := l.name
		if l.added {
			name = "(" + name + ")"
		}
		lines = append(lines, fmt.Sprintf("| %-*s %2d |", boxWidth-5, name, l.size))
		for _, f := range l.fields {
			lines = append(lines, fmt.Sprintf("|   %-*s|", boxWidth-3, f))
		}
		lines = append(lines, border)
	}
	return lines
}

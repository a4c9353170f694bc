package ladder_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/adverb-rdma/adverb/internal/ladder"
	"github.com/adverb-rdma/adverb/internal/wire"
)

var update = flag.Bool("update", false, "write the golden files anew")

var (
	addrA = netip.MustParseAddrPort("10.0.0.1:50000")
	addrB = netip.MustParseAddrPort("10.0.0.2:4791")
)

// tape is a capture of IP packets in the making.
type tape struct {
	b      []byte
	id     uint16 // of the next packets
	cooked bool
}

func newTape() *tape {
	b := binary.LittleEndian.AppendUint32(nil, 0xa1b23c4d) // nanoseconds
	b = append(b, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0)
	return &tape{b: binary.LittleEndian.AppendUint32(b, 101)}
}

// cook makes the capture one of all interfaces, as Linux does it.
func (c *tape) cook() {
	c.cooked = true
	c.b[20] = 113
}

// add writes a packet from one address to another.
func (c *tape) add(at time.Duration, src, dst netip.AddrPort, p wire.Packet) {
	c.addDamaged(at, src, dst, p, false)
}

func (c *tape) addDamaged(at time.Duration, src, dst netip.AddrPort, p wire.Packet, damaged bool) {
	datagram := sealed(c.id, src, dst, p)
	if damaged {
		datagram[len(datagram)-5] ^= 1
	}
	c.addDatagram(at, src, dst, datagram)
}

// addTrain writes packets as one datagram, which is left to a card to cut.
func (c *tape) addTrain(at time.Duration, src, dst netip.AddrPort, packets ...wire.Packet) {
	var train []byte
	for i, p := range packets {
		train = append(train, sealed(c.id+uint16(i), src, dst, p)...)
	}
	c.addDatagram(at, src, dst, train)
}

// sealed is a packet with its ICRC.
func sealed(id uint16, src, dst netip.AddrPort, p wire.Packet) []byte {
	p.PKey = 0xffff
	datagram := p.AppendTo(nil)
	flow := wire.NewFlow(src, netip.AddrPortFrom(dst.Addr(), 4791))
	flow.Seal(id, datagram)
	return datagram
}

func (c *tape) addDatagram(at time.Duration, src, dst netip.AddrPort, datagram []byte) {
	total := 28 + len(datagram)
	var ip []byte
	if c.cooked {
		ip = []byte{0, 0, 0, 1, 0, 6, 1, 2, 3, 4, 5, 6, 0, 0, 8, 0}
	}
	ip = append(ip, 0x45, 0, byte(total>>8), byte(total), byte(c.id>>8), byte(c.id), 0x40, 0, 64, 17, 0, 0)
	ip = append(append(ip, src.Addr().AsSlice()...), dst.Addr().AsSlice()...)
	ip = binary.BigEndian.AppendUint16(ip, src.Port())
	ip = binary.BigEndian.AppendUint16(ip, 4791)
	ip = append(binary.BigEndian.AppendUint16(ip, uint16(8+len(datagram))), 0, 0)
	c.addIP(at, append(ip, datagram...))
}

// addIP writes an IP packet.
func (c *tape) addIP(at time.Duration, ip []byte) {
	const day = 1_700_000_000
	c.b = binary.LittleEndian.AppendUint32(c.b, day+uint32(at/time.Second))
	c.b = binary.LittleEndian.AppendUint32(c.b, uint32(at%time.Second))
	c.b = binary.LittleEndian.AppendUint32(c.b, uint32(len(ip)))
	c.b = binary.LittleEndian.AppendUint32(c.b, uint32(len(ip)))
	c.b = append(c.b, ip...)
}

const (
	qpA = 0x11
	qpB = 0x22
)

// send is a SEND ONLY from A to B.
func send(psn int) wire.Packet {
	return wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, DestQP: qpB, PSN: wire.PSN(psn) & wire.PSNMask, AckReq: true}, Payload: make([]byte, 8)}
}

func write(op wire.Opcode, psn, length int) wire.Packet {
	return wire.Packet{BTH: wire.BTH{Opcode: op, DestQP: qpB, PSN: wire.PSN(psn)}, RETH: wire.RETH{VA: 0x1000, RKey: 0x99, Length: uint32(length)}, Payload: make([]byte, 256)}
}

// answer is an acknowledgement from B to A.
func answer(psn int, s wire.Syndrome) wire.Packet {
	return wire.Packet{BTH: wire.BTH{Opcode: wire.RCAcknowledge, DestQP: qpA, PSN: wire.PSN(psn) & wire.PSNMask}, AETH: wire.AETH{Syndrome: s, MSN: 1}}
}

var (
	ack = wire.SyndromeACK(wire.CreditsUnlimited)
	nak = wire.SyndromeNAK(wire.NAKSequenceError)
)

const us = time.Microsecond

// draw makes the ladder of captures.
func draw(t testing.TB, o ladder.Options, tapes ...*tape) *ladder.Ladder {
	t.Helper()
	c := ladder.NewCollector()
	for _, tape := range tapes {
		if err := c.Read(bytes.NewReader(tape.b)); err != nil {
			t.Fatal(err)
		}
	}
	return c.Ladder(o)
}

// lines are the rows of a ladder: frame, ends, the words that are asked for, and marks.
func lines(l *ladder.Ladder, words func(*ladder.Row) string) (list []string) {
	for i := range l.Rows {
		r := &l.Rows[i]
		s := fmt.Sprintf("%d %s>%s %s", r.Frame, ladder.Letter(r.From), ladder.Letter(r.To), words(r))
		for _, m := range r.Marks {
			s += " | " + m.Text
		}
		list = append(list, s)
	}
	return list
}

// psns are the words of a row of RoCE that most tests look at.
func psns(r *ladder.Row) string {
	return fmt.Sprintf("%d×%s %d-%d", r.Count, r.Label(), r.PSN, r.LastPSN)
}

func check(t *testing.T, l *ladder.Ladder, want ...string) {
	t.Helper()
	checkLines(t, l, psns, want)
}

func checkLines(t *testing.T, l *ladder.Ladder, words func(*ladder.Row) string, want []string) {
	t.Helper()
	if got := lines(l, words); !slices.Equal(got, want) {
		t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// QPs of one pair of addresses may have the same PSNs: each answers one other, the one that has sent the PSN last.
func TestSamePSNs(t *testing.T) {
	c := newTape()
	to := func(at time.Duration, qpn uint32, psn int) {
		p := send(psn)
		p.DestQP = qpn
		c.add(at, addrA, addrB, p)
	}
	from := func(at time.Duration, qpn uint32, psn int, s wire.Syndrome) {
		p := answer(psn, s)
		p.DestQP = qpn
		c.add(at, addrB, addrA, p)
	}
	to(0, 0x21, 1)
	from(1*us, 0x31, 1, ack)
	to(2*us, 0x22, 1)
	to(3*us, 0x21, 2)
	from(4*us, 0x32, 1, ack)
	to(5*us, 0x22, 2)
	from(6*us, 0x32, 2, nak)
	l := draw(t, ladder.Options{}, c)
	var lost []string
	for i := range l.Rows {
		for _, m := range l.Rows[i].Marks {
			if m.Kind == ladder.MarkLost {
				lost = append(lost, fmt.Sprintf("frame %d to %#x: %s", l.Rows[i].Frame, l.Rows[i].QPN, m.Text))
			}
		}
	}
	if want := []string{"frame 6 to 0x22: lost: frame 7 asks for it again"}; !slices.Equal(lost, want) {
		t.Errorf("got %q, want %q", lost, want)
	}
}

// A capture at the sender shows a loss by the NAK and the repeats.
func TestGoBack(t *testing.T) {
	c := newTape()
	for psn := range 4 {
		c.add(time.Duration(psn)*us, addrA, addrB, send(psn))
	}
	c.add(10*us, addrB, addrA, answer(0, ack))
	c.add(11*us, addrB, addrA, answer(1, nak))
	for psn := 1; psn < 4; psn++ {
		c.add(time.Duration(12+psn)*us, addrA, addrB, send(psn))
	}
	c.add(20*us, addrB, addrA, answer(3, ack))
	check(t, draw(t, ladder.Options{}, c),
		"1 A>B 1×SEND_ONLY 0-0",
		"2 A>B 1×SEND_ONLY 1-1 | lost: frame 6 asks for it again",
		"3 A>B 2×SEND_ONLY 2-3",
		"5 B>A 1×ACKNOWLEDGE 0-0",
		"6 B>A 1×ACKNOWLEDGE 1-1 | PSN 1 is missing: send again from there",
		"7 A>B 3×SEND_ONLY 1-3 | repeats frame 2: the NAK asks for PSN 1",
		"10 B>A 1×ACKNOWLEDGE 3-3")
}

// Captures of both ends show each packet once, and a loss by itself. Of two equal packets the later one arrived.
func TestBothEnds(t *testing.T) {
	a, b := newTape(), newTape()
	a.add(0, addrA, addrB, send(0))
	b.add(5*us, addrA, addrB, send(0))
	a.add(6*us, addrA, addrB, send(1)) // lost
	b.add(7*us, addrB, addrA, answer(0, ack))
	a.add(9*us, addrB, addrA, answer(0, ack))
	a.add(5000*us, addrA, addrB, send(1))
	b.add(5004*us, addrA, addrB, send(1))
	b.add(5005*us, addrB, addrA, answer(1, ack)) // lost
	a.add(9000*us, addrA, addrB, send(1))
	b.add(9004*us, addrA, addrB, send(1))
	b.add(9005*us, addrB, addrA, answer(1, ack))
	a.add(9006*us, addrB, addrA, answer(1, ack))
	l := draw(t, ladder.Options{}, a, b)
	check(t, l,
		"1 A>B 1×SEND_ONLY 0-0",
		"2 A>B 1×SEND_ONLY 1-1 | lost: it never arrived",
		"3 B>A 1×ACKNOWLEDGE 0-0",
		"4 A>B 1×SEND_ONLY 1-1 | repeats frame 2: timeout, no answer for 4.99ms",
		"5 B>A 1×ACKNOWLEDGE 1-1 | lost: it never arrived",
		"6 A>B 1×SEND_ONLY 1-1 | repeats frame 4: timeout, no answer for 4ms",
		"7 B>A 1×ACKNOWLEDGE 1-1")
	if got, want := l.Rows[0].Took, 5*us; got != want {
		t.Errorf("the first packet took %v, want %v", got, want)
	}
	if got := l.Rows[3].Silence; got != 4993*us {
		t.Errorf("before frame 4 is a silence of %v, want 4.993ms", got)
	}
	if len(l.Notes) != 1 || !strings.Contains(l.Notes[0], "counted together") {
		t.Errorf("got notes %q, want one about the numbers", l.Notes)
	}
}

// Two copies that both arrive late arrive in their order.
func TestBothCopiesArrive(t *testing.T) {
	a, b := newTape(), newTape()
	for i := range 4 {
		a.add(time.Duration(i)*us, addrA, addrB, send(i%2))
		b.add(time.Duration(50+i)*us, addrA, addrB, send(i%2))
	}
	l := draw(t, ladder.Options{}, a, b)
	check(t, l, "1 A>B 2×SEND_ONLY 0-1", "3 A>B 2×SEND_ONLY 0-1 | repeats frame 1")
	if took := l.Rows[0].Took; took != 50*us {
		t.Errorf("the first took %v, want 50µs", took)
	}
}

func TestOvertaken(t *testing.T) {
	a, b := newTape(), newTape()
	for psn := range 4 {
		a.add(time.Duration(psn)*us, addrA, addrB, send(psn))
	}
	for _, psn := range []int{0, 2, 3, 1} {
		b.add(20*us, addrA, addrB, send(psn))
	}
	check(t, draw(t, ladder.Options{}, a, b),
		"1 A>B 1×SEND_ONLY 0-0",
		"2 A>B 1×SEND_ONLY 1-1 | overtaken: 2 packets sent later arrived first",
		"3 A>B 2×SEND_ONLY 2-3")
}

func TestMarks(t *testing.T) {
	rnr := wire.SyndromeRNR(12)
	c := newTape()
	c.add(0, addrA, addrB, send(1<<24-1)) // PSNs wrap
	c.add(1*us, addrB, addrA, answer(1<<24-1, rnr))
	c.add(700*us, addrA, addrB, send(1<<24-1))
	c.add(701*us, addrA, addrB, send(0))
	c.add(702*us, addrA, addrB, send(3))
	c.add(703*us, addrA, addrB, send(2))
	c.add(704*us, addrA, addrB, write(wire.RCRDMAWriteOnly, 4, 256))
	c.add(705*us, addrB, addrA, answer(4, wire.SyndromeNAK(wire.NAKRemoteAccessError)))
	c.addDamaged(706*us, addrA, addrB, send(5), true)
	check(t, draw(t, ladder.Options{}, c),
		"1 A>B 1×SEND_ONLY 16777215-16777215",
		"2 B>A 1×ACKNOWLEDGE 16777215-16777215 | no receive was posted: come again after 640µs",
		"3 A>B 1×SEND_ONLY 16777215-16777215 | repeats frame 1: its wait after the RNR NAK is over",
		"4 A>B 1×SEND_ONLY 0-0",
		"5 A>B 1×SEND_ONLY 3-3 | PSN 1 to 2 are not in the capture",
		"6 A>B 1×SEND_ONLY 2-2 | late: packets behind it came first",
		"7 A>B 1×RDMA_WRITE_ONLY 4-4",
		"8 B>A 1×ACKNOWLEDGE 4-4 | access is refused, by key, range or permission: its QP fails with status 10",
		"9 A>B 1×SEND_ONLY 5-5 | damaged: its ICRC is wrong, and the receiver drops it")
}

// A packet that was damaged on the way is one packet.
func TestDamagedOnTheWay(t *testing.T) {
	a, b := newTape(), newTape()
	a.add(0, addrA, addrB, send(0))
	b.addDamaged(5*us, addrA, addrB, send(0), true)
	a.add(10*us, addrA, addrB, send(1))
	b.add(15*us, addrA, addrB, send(1))
	l := draw(t, ladder.Options{}, a, b)
	check(t, l, "1 A>B 1×SEND_ONLY 0-0 | damaged: its ICRC is wrong, and the receiver drops it", "2 A>B 1×SEND_ONLY 1-1")
	if l.Rows[0].Fate != ladder.Damaged {
		t.Errorf("the first packet has fate %d, want Damaged", l.Rows[0].Fate)
	}
}

// A READ takes as many PSNs as its responses have packets: no gap.
func TestReadTakesPSNs(t *testing.T) {
	c := newTape()
	read := wire.Packet{BTH: wire.BTH{Opcode: wire.RCRDMAReadRequest, DestQP: qpB, PSN: 0}, RETH: wire.RETH{Length: 1000}}
	c.add(0, addrA, addrB, read)
	for i, op := range []wire.Opcode{wire.RCRDMAReadResponseFirst, wire.RCRDMAReadResponseMiddle, wire.RCRDMAReadResponseMiddle, wire.RCRDMAReadResponseLast} {
		c.add(time.Duration(i+1)*us, addrB, addrA, wire.Packet{BTH: wire.BTH{Opcode: op, DestQP: qpA, PSN: wire.PSN(i)}, AETH: wire.AETH{Syndrome: ack}, Payload: make([]byte, 256)})
	}
	c.add(9*us, addrA, addrB, send(4))
	check(t, draw(t, ladder.Options{}, c),
		"1 A>B 1×RDMA_READ_REQUEST 0-0",
		"2 B>A 1×RDMA_READ_RESPONSE_FIRST 0-0",
		"3 B>A 2×RDMA_READ_RESPONSE_MIDDLE 1-2",
		"5 B>A 1×RDMA_READ_RESPONSE_LAST 3-3",
		"6 A>B 1×SEND_ONLY 4-4")
}

// A READ of XRC does too, and an addition is one.
func TestXRC(t *testing.T) {
	c := newTape()
	xrc := func(p wire.Packet) wire.Packet {
		p.Opcode |= wire.XRC
		p.XRCETH.SRQN = 0x123456
		return p
	}
	c.add(0, addrA, addrB, xrc(wire.Packet{BTH: wire.BTH{Opcode: wire.RCRDMAReadRequest, DestQP: qpB, PSN: 0}, RETH: wire.RETH{Length: 1000}}))
	c.add(9*us, addrA, addrB, xrc(wire.Packet{BTH: wire.BTH{Opcode: wire.RCFetchAdd, DestQP: qpB, PSN: 4}, AtomicETH: wire.AtomicETH{SwapAdd: 7}}))
	l := draw(t, ladder.Options{}, c)
	check(t, l, "1 A>B 1×XRC RDMA_READ_REQUEST 0-0", "2 A>B 1×XRC FETCH_ADD 4-4")
	if want := "to SRQ 0x123456, add 7, at 0x0, rkey 0x00000000"; l.Rows[1].Fields != want {
		t.Errorf("got the fields %q, want %q", l.Rows[1].Fields, want)
	}
}

func TestRunsAndFilters(t *testing.T) {
	c := newTape()
	c.add(0, addrA, addrB, write(wire.RCRDMAWriteFirst, 5, 128*256))
	for i := range 126 {
		c.add(time.Duration(i+1)*us, addrA, addrB, write(wire.RCRDMAWriteMiddle, 6+i, 0))
	}
	c.add(200*us, addrA, addrB, write(wire.RCRDMAWriteLast, 132, 0))
	c.add(300*us, addrB, addrA, answer(132, ack))
	third := netip.MustParseAddrPort("10.0.0.3:5000")
	other := send(7)
	other.DestQP = 0x33
	c.add(301*us, third, addrB, other)
	first, middle := "1 A>B 1×RDMA_WRITE_FIRST 5-5", "2 A>B 126×RDMA_WRITE_MIDDLE 6-131"
	last, answered := "128 A>B 1×RDMA_WRITE_LAST 132-132", "129 B>A 1×ACKNOWLEDGE 132-132"
	check(t, draw(t, ladder.Options{}, c), first, middle, last, answered, "130 C>B 1×SEND_ONLY 7-7")
	check(t, draw(t, ladder.Options{QPN: []uint32{qpB}}, c), first, middle, last, answered)
	check(t, draw(t, ladder.Options{QPN: []uint32{qpA}}, c), first, middle, last, answered)
	check(t, draw(t, ladder.Options{QPN: []uint32{0x33}}, c), "130 A>B 1×SEND_ONLY 7-7")
	check(t, draw(t, ladder.Options{Addrs: []netip.Addr{third.Addr()}}, c), "130 A>B 1×SEND_ONLY 7-7")
	check(t, draw(t, ladder.Options{From: 127 * us, To: 300 * us}, c), last, answered)
	if l := draw(t, ladder.Options{All: true}, c); len(l.Rows) != 130 {
		t.Errorf("with all packets there are %d rows, want 130", len(l.Rows))
	}
	l := draw(t, ladder.Options{Limit: 2}, c)
	check(t, l, first, middle)
	if len(l.Notes) != 1 || !strings.Contains(l.Notes[0], "3 packets from 0.000200 s on are left out") {
		t.Errorf("got notes %q, want one about 3 packets", l.Notes)
	}
	if words := l.Rows[1].Words(); words != "… 126 × RDMA_WRITE_MIDDLE, QP 0x000022, PSN 6–131, 256 bytes each" {
		t.Errorf("got %q", words)
	}
}

// Between two QPs of one address the ends are the QPs. A software device that sends to itself has each packet twice.
func TestOneAddress(t *testing.T) {
	host := netip.MustParseAddrPort("127.0.0.1:50000")
	c := newTape()
	for i := range 6 {
		at := time.Duration(10*i) * us
		for k := range time.Duration(2) {
			c.add(at+k*us, host, host, send(i))
			c.add(at+(4+k)*us, host, host, answer(i, ack))
		}
	}
	l := draw(t, ladder.Options{}, c)
	if len(l.Ends) != 2 || l.Ends[0].Name != "127.0.0.1, QP 0x000011" || l.Ends[1].Name != "127.0.0.1, QP 0x000022" {
		t.Errorf("got ends %+v", l.Ends)
	}
	for i := range l.Rows {
		if r := &l.Rows[i]; len(r.Marks) > 0 {
			t.Errorf("frame %d is marked %+v", r.Frame, r.Marks)
		}
	}
	if got := lines(l, psns); len(got) != 12 || got[1] != "2 B>A 1×ACKNOWLEDGE 0-0" && got[1] != "3 B>A 1×ACKNOWLEDGE 0-0" {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}

func kernels(t testing.TB) []string {
	t.Helper()
	names, err := filepath.Glob("../wire/testdata/*.pcap")
	if err != nil || len(names) == 0 {
		t.Fatalf("no captures: %v", err)
	}
	return names
}

// Healthy captures of two Linux kernels have no marks but one: ibv_rc_pingpong against a responder that is no RDMA stack.
func TestKernels(t *testing.T) {
	for _, name := range kernels(t) {
		l := ladderOf(t, name)
		for i := range l.Rows {
			if r := &l.Rows[i]; len(r.Marks) > 0 {
				t.Errorf("%s: frame %d is marked %+v", name, r.Frame, r.Marks)
			}
		}
		if len(l.Ends) < 2 || len(l.Rows) == 0 {
			t.Errorf("%s: got %d ends and %d rows", name, len(l.Ends), len(l.Rows))
		}
	}
}

func ladderOf(t testing.TB, name string) *ladder.Ladder {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return draw(t, ladder.Options{}, &tape{b: b})
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	name = filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(name, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

func texts(t testing.TB, l *ladder.Ladder, title string) (text, svg string) {
	t.Helper()
	var b, p strings.Builder
	if err := errors.Join(l.Text(&b), l.SVG(&p, title)); err != nil {
		t.Fatal(err)
	}
	return b.String(), p.String()
}

// Texts have 100 columns, pictures are XML, and both are the same at each run.
func TestDrawings(t *testing.T) {
	for _, name := range kernels(t) {
		text, svg := texts(t, ladderOf(t, name), name)
		again, svgAgain := texts(t, ladderOf(t, name), name)
		if text != again || svg != svgAgain {
			t.Errorf("%s: two runs draw differently", name)
		}
		checkDrawing(t, name, text, svg)
		switch base := strings.TrimSuffix(filepath.Base(name), ".pcap"); base {
		case "rping", "write_lat", "udaddy", "atomic_cas":
			golden(t, base+".txt", text)
		case "read_lat":
			golden(t, base+".svg", svg)
		}
	}
}

func checkDrawing(t testing.TB, name, text, svg string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > ladder.TextWidth {
			t.Errorf("%s: a line has %d columns: %s", name, n, line)
		}
	}
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Errorf("%s: the picture is no XML: %v", name, err)
			return
		}
	}
	for _, bad := range []string{"<script", "href", "url(", "@import"} {
		if strings.Contains(svg, bad) {
			t.Errorf("%s: the picture has %q, and must need nothing else", name, bad)
		}
	}
}

func TestManyEnds(t *testing.T) {
	c := newTape()
	for i := range 20 {
		c.add(time.Duration(i)*us, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}), 50000), addrB, send(0))
	}
	l := draw(t, ladder.Options{}, c)
	if len(l.Ends) != 10 || len(l.Rows) != 9 || len(l.Notes) != 1 {
		t.Errorf("got %d ends, %d rows and notes %q", len(l.Ends), len(l.Rows), l.Notes)
	}
	text, svg := texts(t, l, "many")
	checkDrawing(t, "many", text, svg)
}

// Files that are made to take long take no longer than others: of each kind are as many packets as fit into a second or two
// if all are compared with all.
func TestBounded(t *testing.T) {
	const n = 30_000
	same, qps, one := newTape(), newTape(), newTape()
	for i := range n {
		same.add(0, addrA, addrB, send(1))
		p, q := send(i), answer(i+100_000, ack)
		p.DestQP, q.DestQP = uint32(2+i), uint32(2+i)
		qps.add(0, addrA, addrB, p)
		qps.add(0, addrB, addrA, q)
		one.add(0, addrA, addrA, p)
	}
	for _, c := range []*tape{same, qps, one} {
		start := time.Now()
		l := draw(t, ladder.Options{Limit: 10}, c)
		if took := time.Since(start); l.Total < n || took > 20*time.Second {
			t.Errorf("%d packets took %v", l.Total, took)
		}
	}
}

// A capture of all interfaces may have a packet twice. A repeat has another identification.
func TestAllInterfaces(t *testing.T) {
	c := newTape()
	c.cook()
	for _, id := range []uint16{7, 7, 8} {
		c.id = id
		c.add(0, addrA, addrB, send(1))
	}
	check(t, draw(t, ladder.Options{}, c), "1 A>B 1×SEND_ONLY 1-1", "3 A>B 1×SEND_ONLY 1-1 | repeats frame 1")
}

// A request of the connection manager that nobody answers is sent again.
func TestNoAnswer(t *testing.T) {
	header, req := wire.NewCMHeader(wire.CMREQ, 1), wire.REQ{LocalCommID: 5, LocalQPN: qpA, ServiceID: wire.RDMAServiceID(wire.PortSpaceTCP, 7174)}
	p := wire.Packet{BTH: wire.BTH{Opcode: wire.UDSendOnly, DestQP: wire.GSIQPN}, DETH: wire.DETH{SrcQP: 1}, Payload: req.AppendTo(header.AppendTo(nil))}
	c := newTape()
	for i := range 3 {
		p.PSN = wire.PSN(i)
		c.add(time.Duration(i)*6400*time.Millisecond, addrA, addrB, p)
	}
	check(t, draw(t, ladder.Options{}, c),
		"1 A>B 1×UD SEND_ONLY 0-0",
		"2 A>B 1×UD SEND_ONLY 1-1 | sent again, after frame 1: no answer for 6.4s",
		"3 A>B 1×UD SEND_ONLY 2-2 | sent again, after frame 2: no answer for 6.4s")
}

// Times of a capture may be any.
func TestFarApart(t *testing.T) {
	c := newTape()
	for range 3 {
		c.add(0, addrA, addrB, send(1))
	}
	second := bytes.LastIndex(c.b, binary.LittleEndian.AppendUint32(nil, 1_700_000_000))
	binary.LittleEndian.PutUint32(c.b[second:], 1<<32-1)
	check(t, draw(t, ladder.Options{}, c), "1 A>B 1×SEND_ONLY 1-1",
		"2 A>B 2×SEND_ONLY 1-1 | repeats frame 1")
	text, _ := texts(t, draw(t, ladder.Options{All: true}, c), "far")
	checkDrawing(t, "far", text, "<svg/>")
	if !strings.Contains(text, "timeout, no answer for 720824h14m55s") {
		t.Errorf("got\n%s", text)
	}
}

func TestNothing(t *testing.T) {
	text, svg := texts(t, draw(t, ladder.Options{}, newTape()), "none")
	if text != "No packets to draw.\n" || !strings.Contains(svg, "No packets to draw.") {
		t.Errorf("got %q and %s", text, svg)
	}
	c := ladder.NewCollector()
	if err := c.Read(strings.NewReader("no capture at all")); err == nil {
		t.Error("a text was read as a capture")
	}
}

// Captures come from strangers.
func FuzzLadder(f *testing.F) {
	for _, name := range kernels(f) {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b[:min(len(b), 4000)], true)
	}
	f.Add(recorded(f), false)
	f.Add(iwarpTraffic(tcpA, tcpB, 0).tape.b, true)
	f.Add(iwarpTraffic(tcpA, netip.AddrPortFrom(tcpA.Addr(), 7471), 0).tape.b, true)
	f.Fuzz(func(t *testing.T, file []byte, twice bool) {
		c := ladder.NewCollector()
		_ = c.Read(bytes.NewReader(file))
		if twice {
			_ = c.Read(bytes.NewReader(file))
		}
		text, svg := texts(t, c.Ladder(ladder.Options{}), string(file[:min(len(file), 20)]))
		checkDrawing(t, "fuzz", text, svg)
		if err := c.HTML(io.Discard, "fuzz", ladder.Options{}, ladder.Diagnosis{}); err != nil {
			t.Error(err)
		}
		var trace bytes.Buffer
		if err := c.Perfetto(&trace, ladder.Options{}); err != nil || !json.Valid(trace.Bytes()) {
			t.Errorf("a trace that is no JSON, %v: %s", err, &trace)
		}
	})
}

package ladder_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/browsertest"
	"github.com/adverb-rdma/adverb/internal/iwarp"
	"github.com/adverb-rdma/adverb/internal/ladder"
	"github.com/adverb-rdma/adverb/internal/mpa"
)

var (
	tcpA = netip.MustParseAddrPort("10.0.0.1:40000")
	tcpB = netip.MustParseAddrPort("10.0.0.2:7471")
)

// tcpTape is a capture of one TCP connection in the making.
type tcpTape struct {
	*tape
	a, b netip.AddrPort
	sent map[netip.AddrPort]uint32
}

func newTCPTape(a, b netip.AddrPort) *tcpTape {
	return &tcpTape{newTape(), a, b, map[netip.AddrPort]uint32{}}
}

// stream sends the next bytes of a stream in one segment.
func (c *tcpTape) stream(at time.Duration, from netip.AddrPort, payload []byte) {
	c.segment(at, from, c.sent[from], payload)
	c.sent[from] += uint32(len(payload))
}

// segment sends bytes at a place of a stream.
func (c *tcpTape) segment(at time.Duration, from netip.AddrPort, seq uint32, payload []byte) {
	to := c.a
	if from == c.a {
		to = c.b
	}
	total := 40 + len(payload)
	ip := []byte{0x45, 0, byte(total >> 8), byte(total), byte(c.id >> 8), byte(c.id), 0x40, 0, 64, 6, 0, 0}
	c.id++
	ip = append(append(ip, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	ip = binary.BigEndian.AppendUint16(ip, from.Port())
	ip = binary.BigEndian.AppendUint16(ip, to.Port())
	const first = 0xfffffff0 // the numbers wrap
	ip = binary.BigEndian.AppendUint32(ip, first+seq)
	ip = binary.BigEndian.AppendUint32(ip, first+c.sent[to])
	const ack = 0x10
	ip = append(ip, 5<<4, ack, 0x20, 0, 0, 0, 0, 0)
	c.addIP(at, append(ip, payload...))
}

// fpdu is a segment of DDP in an FPDU.
func fpdu(h iwarp.Header, body []byte) []byte {
	ulpdu := append(h.AppendTo(nil), body...)
	b := append(mpa.AppendLength(nil, len(ulpdu)), ulpdu...)
	b = append(b, make([]byte, mpa.TrailerSize(len(ulpdu)))...)
	mpa.Seal(b)
	return b
}

const (
	stagA, stagB = 0x0badcafe, 0x5eed
	vaA, vaB     = 0x7f00dead0000, 0x5000
)

// iwarpTraffic is a connection with messages of each kind, captured so long after they were sent.
func iwarpTraffic(a, b netip.AddrPort, late time.Duration) *tcpTape {
	c := newTCPTape(a, b)
	at := late
	stream := func(from netip.AddrPort, parts ...[]byte) {
		c.stream(at, from, slices.Concat(parts...))
		at += 10 * us
	}
	request := mpa.Frame{Revision: 2, CRC: true, Enhanced: true, IRD: 4, ORD: 4, PeerToPeer: true, RTR: mpa.RTRFPDU, PrivateData: []byte("hello")}
	reply := mpa.Frame{Reply: true, Revision: 2, CRC: true, Enhanced: true, IRD: 4, ORD: 4}
	stream(a, request.AppendTo(nil))
	stream(b, reply.AppendTo(nil))
	stream(a, fpdu0())
	// Two messages in a segment, and one in four FPDUs, of which the segments' borders know nothing.
	stream(a, fpdu(iwarp.Header{Last: true, Op: iwarp.Send, MSN: 1}, make([]byte, 16)),
		fpdu(iwarp.Header{Last: true, Op: iwarp.SendInvalidate, STag: stagB, MSN: 2}, make([]byte, 1)))
	var long []byte
	for i := range 4 {
		long = append(long, fpdu(iwarp.Header{Tagged: true, Last: i == 3, Op: iwarp.Write, STag: stagB, TO: vaB + uint64(i)*100}, make([]byte, 100))...)
	}
	for part := range slices.Chunk(long, 70) {
		stream(a, part)
	}
	read := iwarp.ReadReq{SinkSTag: stagA, SinkTO: vaA, Size: 64, SrcSTag: stagB, SrcTO: vaB}
	stream(a, fpdu(iwarp.Header{Last: true, Op: iwarp.ReadRequest, QN: 1, MSN: 1}, read.AppendTo(nil)))
	stream(b, fpdu(iwarp.Header{Tagged: true, Last: true, Op: iwarp.ReadResponse, STag: stagA, TO: vaA}, make([]byte, 64)))
	atomic := iwarp.AtomicReq{Op: iwarp.CompareSwap, STag: stagB, TO: vaB + 8, Compare: 5, Data: 7}
	stream(a, fpdu(iwarp.Header{Last: true, Op: iwarp.AtomicRequest, QN: 1, MSN: 2}, atomic.AppendTo(nil)))
	was := iwarp.AtomicResp{Original: 5}
	stream(b, fpdu(iwarp.Header{Last: true, Op: iwarp.AtomicResponse, QN: 3, MSN: 1}, was.AppendTo(nil)))
	stream(a, fpdu(iwarp.Header{Last: true, Op: iwarp.Immediate, MSN: 3}, []byte{0, 0, 0, 0, 0x12, 0x34, 0x56, 0x78}))
	wrong := iwarp.Header{Tagged: true, Last: true, Op: iwarp.Write, STag: 1}
	stream(a, fpdu(wrong, make([]byte, 8)))
	end := iwarp.TermMsg{Code: 0x1100, Header: &wrong, Segment: 22}
	stream(b, fpdu(iwarp.Header{Last: true, Op: iwarp.Terminate, QN: 2, MSN: 1}, end.AppendTo(nil)))
	return c
}

// fpdu0 is an FPDU without a segment.
func fpdu0() []byte {
	b := append(mpa.AppendLength(nil, 0), make([]byte, mpa.TrailerSize(0))...)
	mpa.Seal(b)
	return b
}

func checkRows(t *testing.T, l *ladder.Ladder, want ...string) {
	t.Helper()
	checkLines(t, l, (*ladder.Row).Words, want)
}

// Of iWARP each MPA frame and each FPDU is a row, wherever TCP's segments begin. Segments of a message that are alike
// become one row.
func TestIWARP(t *testing.T) {
	l := draw(t, ladder.Options{}, iwarpTraffic(tcpA, tcpB, 0).tape)
	const there, back = "TCP 40000→7471", "TCP 7471→40000"
	checkRows(t, l,
		"1 A>B MPA request, "+there+", revision 2, CRC, IRD 4, ORD 4, peer to peer, RTR by an empty FPDU, 5 bytes of private data",
		"2 B>A MPA reply, "+back+", revision 2, CRC, IRD 4, ORD 4",
		"3 A>B empty FPDU, "+there+", ready to receive",
		"4 A>B Send, "+there+", 16 bytes, MSN 1",
		"4 A>B Send with Invalidate, "+there+", 1 byte, MSN 2, invalidates STag 0x00005eed",
		"6 A>B RDMA Write, "+there+", 100 bytes, to 0x5000, STag 0x00005eed, of a longer message",
		"8 A>B … 2 × RDMA Write, "+there+", 100 bytes each, the message goes on",
		"11 A>B RDMA Write, "+there+", 100 bytes, the message ends",
		"12 A>B RDMA Read Request, "+there+", MSN 1, 64 bytes from 0x5000, STag 0x00005eed, into 0x7f00dead0000, STag 0x0badcafe",
		"13 B>A RDMA Read Response, "+back+", 64 bytes, to 0x7f00dead0000, STag 0x0badcafe",
		"14 A>B Atomic Request, "+there+", MSN 2, if it is 5, then 7, at 0x5008, STag 0x00005eed",
		"15 B>A Atomic Response, "+back+", MSN 1, it was 5",
		"16 A>B Immediate Data, "+there+", MSN 3, immediate 0x0000000012345678",
		"17 A>B RDMA Write, "+there+", 8 bytes, to 0x0, STag 0x00000001",
		"18 B>A Terminate, "+back+", MSN 1, about: RDMA Write | the connection ends: invalid STag: no such memory region (layer 1, type 1, code 0x00)")
	if want := "Of 18 frames of TCP the MPA frames and FPDUs of iWARP are drawn."; !slices.Equal(l.Notes, []string{want}) {
		t.Errorf("got notes %q, want %q", l.Notes, want)
	}
	text, svg := texts(t, l, "iWARP")
	checkDrawing(t, "iWARP", text, svg)
	if strings.Count(svg, `class="answer"`) != 4-1 { // the reply, and two responses; the Terminate is a refusal
		t.Errorf("got %d answers, want 3:\n%s", strings.Count(svg, `class="answer"`), svg)
	}
}

// TCP's own troubles are marked at the FPDU that they delay, and damage at the one that is damaged. A connection that the
// capture shows from its middle on is drawn too, and other connections are not.
func TestIWARPMarks(t *testing.T) {
	c := newTCPTape(tcpA, tcpB)
	c.stream(0, tcpA, (&mpa.Frame{Revision: 1, CRC: true}).AppendTo(nil))
	c.stream(us, tcpB, (&mpa.Frame{Reply: true, Revision: 1, CRC: true}).AppendTo(nil))
	send := func(msn uint32) []byte {
		return fpdu(iwarp.Header{Last: true, Op: iwarp.Send, MSN: msn}, make([]byte, 6))
	}
	n := uint32(len(send(1)))
	at := c.sent[tcpA]
	c.segment(3*us, tcpA, at+n, send(2)) // ahead of the one before it, which was lost
	c.segment(300*time.Millisecond, tcpA, at, send(1))
	c.sent[tcpA] += 2 * n
	damaged := send(3)
	damaged[len(damaged)-6] ^= 1
	c.stream(400*time.Millisecond, tcpA, damaged)
	checkRows(t, draw(t, ladder.Options{}, c.tape),
		"1 A>B MPA request, TCP 40000→7471, revision 1, CRC",
		"2 B>A MPA reply, TCP 7471→40000, revision 1, CRC",
		"3 A>B Send, TCP 40000→7471, 6 bytes, MSN 2",
		"4 A>B Send, TCP 40000→7471, 6 bytes, MSN 1 | TCP has sent its segment again",
		"5 A>B Send, TCP 40000→7471, 6 bytes, MSN 3 | damaged: its CRC is wrong, and the receiver ends the connection")

	c = newTCPTape(tcpA, tcpB)
	c.stream(0, tcpA, send(7))
	checkRows(t, draw(t, ladder.Options{}, c.tape), "1 A>B Send, TCP 40000→7471, 6 bytes, MSN 7")

	c = newTCPTape(tcpA, tcpB)
	c.stream(0, tcpA, []byte("GET / HTTP/1.1\r\n\r\n"))
	l := draw(t, ladder.Options{}, c.tape)
	if want := "1 frame of TCP is not drawn: no iWARP was recognized."; len(l.Rows) != 0 || !slices.Equal(l.Notes, []string{want}) {
		t.Errorf("got %q, notes %q; want no row, and %q", lines(l, (*ladder.Row).Words), l.Notes, want)
	}
}

// Captures of both ends show each FPDU once, with the time that it took. An address that connects to itself has an end for
// each port.
func TestIWARPBothEnds(t *testing.T) {
	one := draw(t, ladder.Options{}, iwarpTraffic(tcpA, tcpB, 0).tape)
	both := draw(t, ladder.Options{}, iwarpTraffic(tcpA, tcpB, 0).tape, iwarpTraffic(tcpA, tcpB, 3*us).tape)
	if len(both.Rows) != len(one.Rows) {
		t.Fatalf("got %d rows, want %d as of one end:\n%s", len(both.Rows), len(one.Rows), strings.Join(lines(both, (*ladder.Row).Words), "\n"))
	}
	for i := range both.Rows {
		if r := &both.Rows[i]; r.Took != 3*us || r.Fate != ladder.Arrived {
			t.Errorf("%s took %v, fate %d; want 3 µs, and that it arrived", r.Words(), r.Took, r.Fate)
		}
	}
	l := draw(t, ladder.Options{}, iwarpTraffic(tcpA, netip.AddrPortFrom(tcpA.Addr(), 7471), 0).tape)
	var names []string
	for _, e := range l.Ends {
		names = append(names, e.Name)
	}
	if want := []string{"10.0.0.1, port 40000", "10.0.0.1, port 7471"}; !slices.Equal(names, want) || len(l.Rows) != len(one.Rows) {
		t.Errorf("got %d rows between %q, want %d between %q", len(l.Rows), names, len(one.Rows), want)
	}
}

// A capture that lacks a segment at one end shows no loss: TCP has sent it again, or the capture has lost it.
func TestIWARPHole(t *testing.T) {
	send := func(msn uint32) []byte {
		return fpdu(iwarp.Header{Last: true, Op: iwarp.Send, MSN: msn}, make([]byte, 6))
	}
	capture := func(late time.Duration, lacks uint32) *tape {
		c := newTCPTape(tcpA, tcpB)
		for msn := uint32(1); msn <= 3; msn++ {
			if msn != lacks {
				c.segment(late+time.Duration(msn)*us, tcpA, c.sent[tcpA], send(msn))
			}
			c.sent[tcpA] += uint32(len(send(msn)))
		}
		c.stream(late+20*us, tcpB, send(1)) // acknowledges all
		return c.tape
	}
	const a, b = "TCP 40000→7471", "TCP 7471→40000"
	l := draw(t, ladder.Options{}, capture(0, 0), capture(5*us, 2))
	checkRows(t, l, "1 A>B Send, "+a+", 6 bytes, MSN 1", "2 A>B Send, "+a+", 6 bytes, MSN 2", "3 A>B Send, "+a+", 6 bytes, MSN 3", "4 B>A Send, "+b+", 6 bytes, MSN 1")
	if took := l.Rows[1].Took; took != -1 || l.Rows[1].Fate != ladder.Unknown {
		t.Errorf("the one that is not at the other end took %v, fate %d; want -1 and %d", took, l.Rows[1].Fate, ladder.Unknown)
	}
	checkRows(t, draw(t, ladder.Options{}, capture(0, 2)),
		"1 A>B Send, "+a+", 6 bytes, MSN 1", "2 A>B Send, "+a+", 6 bytes, MSN 3 | what TCP carried before it is not in the capture", "3 B>A Send, "+b+", 6 bytes, MSN 1")
}

// A trace names the TCP connections, and a page has the words of the text, the memory by STag, and each connection as one.
func TestIWARPForms(t *testing.T) {
	tape := iwarpTraffic(tcpA, tcpB, 0).tape
	c := ladder.NewCollector()
	if err := c.Read(bytes.NewReader(tape.b)); err != nil {
		t.Fatal(err)
	}
	var trace bytes.Buffer
	if err := c.Perfetto(&trace, ladder.Options{}); err != nil || !json.Valid(trace.Bytes()) {
		t.Fatalf("%v, %s", err, &trace)
	}
	for _, want := range []string{`"sends to TCP 40000→7471"`, `"sends to TCP 7471→40000"`, `"RDMA Read Request"`} {
		if !strings.Contains(trace.String(), want) {
			t.Errorf("the trace has no %s", want)
		}
	}
	if strings.Contains(trace.String(), "QP 0x") || strings.Contains(trace.String(), `"psn"`) {
		t.Errorf("the trace has QPs or PSNs, which iWARP has not: %s", &trace)
	}

	name := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(name, []byte(page(t, ladder.Diagnosis{}, tape)), 0o600); err != nil {
		t.Fatal(err)
	}
	p := browsertest.Start(t).OpenFile(name)
	p.Wait(`window.ladderPage && ladderPage.drawn > 0`)
	l := draw(t, ladder.Options{All: true}, tape)
	got := browsertest.Eval[[]string](p, `Array.from({length: ladderPage.model.p.n}, (_, i) => ladderPage.model.words(i))`)
	for i := range l.Rows {
		if i >= len(got) || got[i] != l.Rows[i].Words() {
			t.Errorf("the page has %q, want row %d as %q", got, i, l.Rows[i].Words())
			break
		}
	}
	for _, x := range []struct{ expression, want string }{
		{`ladderPage.model.head.regions.map((r) => r.key + ' ' + r.rkey).join()`, "STag 0x00005eed,STag 0x0badcafe,STag 0x00000001"},
		{`ladderPage.memory.fill(8, 4)[0].cells.join()`, "2,2,2,2"},                                                         // the four FPDUs of the WRITE
		{`ladderPage.memory.fill(9, 4)[0].written + ' ' + ladderPage.memory.fill(9, 4)[0].read`, "400 64"},                  // and the READ
		{`[...ladderPage.byQP.options].map((o) => o.textContent).join()`, "all,TCP 7471→40000,TCP 40000→7471"},              //
		{`ladderPage.byQP.selectedIndex = 1, ladderPage.filter(), String(ladderPage.view.length)`, fmt.Sprint(len(l.Rows))}, // both directions
	} {
		if got := browsertest.Eval[string](p, x.expression); got != x.want {
			t.Errorf("%s: got %s, want %s", x.expression, got, x.want)
		}
	}
	p.Press("4j")
	p.ScreenshotTo("ADVERB_SCREENSHOTS", "iwarp.png")
	p.Problems()
}

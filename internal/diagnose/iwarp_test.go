package diagnose_test

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/diagnose"
	"github.com/adverb-rdma/adverb/internal/iwarp"
	"github.com/adverb-rdma/adverb/internal/mpa"
)

const (
	fromA = 0
	fromB = 1
)

// segment sends a TCP segment at a place of the stream, counted from its beginning.
func (s *script) segment(from int, seq uint32, flags byte, payload []byte) int {
	src, dst := netip.AddrPortFrom(s.a, 40000), netip.AddrPortFrom(s.b, 7471)
	if from == fromB {
		src, dst = dst, src
	}
	s.id++
	b := ipv4(src.Addr(), dst.Addr(), 0, 6, s.id, 20+len(payload))
	b = binary.BigEndian.AppendUint16(b, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	const first = 0xfffff000 // the numbers wrap
	b = binary.BigEndian.AppendUint32(b, first+seq)
	b = binary.BigEndian.AppendUint32(b, first+s.sent[1-from])
	b = append(b, 5<<4, flags|capture.TCPAck, 0x20, 0, 0, 0, 0, 0)
	return s.put(append(b, payload...), 0)
}

// stream sends the next bytes of a stream.
func (s *script) stream(from int, payload []byte) int {
	n := s.segment(from, s.sent[from], 0, payload)
	s.sent[from] += uint32(len(payload))
	return n
}

// opens is the MPA frames of a connection.
func (s *script) opens(change func(request, reply *mpa.Frame)) {
	request, reply := mpa.Frame{Revision: 2, CRC: true, Enhanced: true, IRD: 4, ORD: 4}, mpa.Frame{Reply: true, Revision: 2, CRC: true, Enhanced: true, IRD: 4, ORD: 4}
	if change != nil {
		change(&request, &reply)
	}
	s.stream(fromA, request.AppendTo(nil))
	s.stream(fromB, reply.AppendTo(nil))
}

// fpdu is a message in one FPDU.
func fpdu(h iwarp.Header, body []byte) []byte {
	h.Last = true
	ulpdu := append(h.AppendTo(nil), body...)
	b := append(mpa.AppendLength(nil, len(ulpdu)), ulpdu...)
	b = append(b, make([]byte, mpa.TrailerSize(len(ulpdu)))...)
	mpa.Seal(b)
	return b
}

func iwWrite(n int) []byte {
	return fpdu(iwarp.Header{Tagged: true, Op: iwarp.Write, STag: 0xbadcafe, TO: 0x7f00dead0000}, make([]byte, n))
}

func iwReadRequest(n uint32) []byte {
	r := iwarp.ReadReq{SinkSTag: 1, Size: n, SrcSTag: 0xbadcafe, SrcTO: 0x7f00dead0000}
	return fpdu(iwarp.Header{Op: iwarp.ReadRequest, QN: 1, MSN: 1}, r.AppendTo(nil))
}

func iwReadResponse(n int) []byte {
	return fpdu(iwarp.Header{Tagged: true, Op: iwarp.ReadResponse, STag: 1}, make([]byte, n))
}

func iwTerminate(code iwarp.Code, about *iwarp.Header) []byte {
	m := iwarp.TermMsg{Code: code, Header: about, Segment: 22}
	return fpdu(iwarp.Header{Op: iwarp.Terminate, QN: 2, MSN: 1}, m.AppendTo(nil))
}

// closes ends a connection in order.
func (s *script) closes() {
	s.segment(fromA, s.sent[fromA], capture.TCPFin, nil)
	s.segment(fromB, s.sent[fromB], capture.TCPFin, nil)
}

// traffic is WRITEs and a READ with its answer.
func (s *script) iwTraffic() {
	for _, n := range []int{1, 64, 1000} {
		s.stream(fromA, iwWrite(n))
		s.segment(fromB, s.sent[fromB], 0, nil)
	}
	s.stream(fromA, iwReadRequest(100))
	s.stream(fromB, iwReadResponse(100))
	s.segment(fromA, s.sent[fromA], 0, nil)
}

// marked is FPDUs with their markers.
func marked(fpdus ...[]byte) (b []byte) {
	var m mpa.Marks
	for _, f := range fpdus {
		at := len(b)
		b = m.Append(b, f)
		mpa.SealMarked(b[at:])
	}
	return b
}

var iwarpScripts = []conversation{
	{"iWARP", func(s *script) { s.opens(nil); s.iwTraffic(); s.closes() }, nil, nil},
	{"iWARP, in segments of another size", func(s *script) {
		s.opens(nil)
		all := slices.Concat(iwWrite(3000), iwWrite(5), iwReadRequest(10), iwWrite(100))
		for part := range slices.Chunk(all, 700) {
			s.stream(fromA, part)
		}
		s.stream(fromB, iwReadResponse(10))
		s.closes()
	}, nil, nil},
	{"iWARP with markers", func(s *script) {
		s.opens(func(_, reply *mpa.Frame) { reply.Markers = true })
		for part := range slices.Chunk(marked(iwWrite(300), iwWrite(2000), iwWrite(700)), 1000) {
			s.stream(fromA, part)
		}
		s.closes()
	}, nil, nil},
	{"iWARP with a marker that is wrong", func(s *script) {
		s.opens(func(_, reply *mpa.Frame) { reply.Markers = true })
		b := marked(iwWrite(2000))
		b[512+3] ^= 4
		mpa.SealMarked(b)
		s.stream(fromA, b)
	}, []string{"IW-FRAME"}, nil},
	{"iWARP out of order", func(s *script) {
		s.opens(nil)
		parts := [][]byte{iwWrite(100), iwWrite(200), iwWrite(300)}
		at := s.sent[fromA]
		s.segment(fromA, at+uint32(len(parts[0])), 0, parts[1])
		s.segment(fromA, at+uint32(len(parts[0])+len(parts[1])), 0, parts[2])
		s.segment(fromA, at, 0, parts[0])
		s.sent[fromA] += uint32(len(slices.Concat(parts...)))
		s.iwTraffic()
		s.closes()
	}, nil, nil},
	{"iWARP, found midway", func(s *script) { s.iwTraffic(); s.iwTraffic() }, nil, nil},
	{"iWARP, one end of a mirror of both", func(s *script) {
		s.opens(nil)
		s.iwTraffic()
		for _, f := range slices.Clone(s.frames) {
			s.put(f.Data, 0)
		}
	}, nil, nil},
	{"iWARP, each segment twice", func(s *script) {
		s.opens(nil)
		for range 3 {
			s.stream(fromA, iwWrite(500))
			s.put(s.frames[len(s.frames)-1].Data, 0)
			s.segment(fromB, s.sent[fromB], 0, nil)
			s.put(s.frames[len(s.frames)-1].Data, 0)
		}
	}, nil, nil},
	{"iWARP that the capture has holes of", func(s *script) {
		s.opens(nil)
		s.iwTraffic()
		s.sent[fromA] += 5000
		s.segment(fromB, s.sent[fromB], 0, nil)
		s.iwTraffic()
		s.closes()
	}, nil, nil},
	{"iWARP, cut", func(s *script) {
		s.opens(nil)
		for _, b := range [][]byte{iwWrite(500), slices.Concat(iwWrite(10), iwWrite(500)), slices.Concat(iwWrite(500), iwWrite(300)), iwReadRequest(9)} {
			s.stream(fromA, b)
			f := &s.frames[len(s.frames)-1]
			f.Data = f.Data[:min(len(f.Data), 130)]
		}
		s.stream(fromB, iwReadResponse(9))
	}, nil, nil},
	{"no CRC", func(s *script) {
		s.opens(func(request, reply *mpa.Frame) { request.CRC, reply.CRC = false, false })
		b := iwWrite(64)
		clear(b[len(b)-4:])
		s.stream(fromA, b)
		s.closes()
	}, nil, nil},
	{"a CRC that is wrong", func(s *script) {
		s.opens(nil)
		s.iwTraffic()
		b := iwWrite(500)
		b[100] ^= 1
		s.stream(fromA, b)
		s.stream(fromB, iwTerminate(0x2002, nil))
		s.closes()
	}, []string{"IW-CRC", "IW-TERM"}, nil},
	{"iWARP that breaks off", func(s *script) {
		s.opens(nil)
		s.iwTraffic()
		s.segment(fromB, s.sent[fromB], capture.TCPRst, nil)
	}, []string{"IW-RESET"}, nil},
	{"an invalid STag", func(s *script) {
		s.opens(nil)
		s.stream(fromA, iwWrite(8))
		s.stream(fromB, iwTerminate(0x1100, &iwarp.Header{Tagged: true, Op: iwarp.Write, STag: 0xbadcafe, TO: 0x7f00dead0000}))
		s.segment(fromB, s.sent[fromB], capture.TCPRst, nil)
	}, []string{"IW-TERM"}, nil},
	{"an MPA reject", func(s *script) {
		s.opens(func(_, reply *mpa.Frame) { reply.Reject, reply.PrivateData = true, []byte{0x80, 0x05} })
		s.closes()
	}, []string{"IW-REJ"}, nil},
	{"an MPA request to another program", func(s *script) {
		s.stream(fromA, (&mpa.Frame{Revision: 2}).AppendTo(nil))
		s.stream(fromB, []byte("220 mail.example.com ESMTP\r\n"))
		s.closes()
	}, []string{"IW-NOTMPA"}, nil},
	{"an MPA request without an answer", func(s *script) {
		s.stream(fromA, (&mpa.Frame{Revision: 2}).AppendTo(nil))
		s.segment(fromB, s.sent[fromB], 0, nil)
		s.now += 5 * time.Second
		s.segment(fromA, s.sent[fromA], capture.TCPFin, nil)
	}, []string{"IW-NOANSWER"}, nil},
	{"a READ without an answer", func(s *script) {
		s.opens(nil)
		s.iwTraffic()
		s.stream(fromA, iwReadRequest(100))
		s.segment(fromB, s.sent[fromB], 0, nil)
		s.now += 5 * time.Second
		s.stream(fromA, iwWrite(8))
		s.segment(fromB, s.sent[fromB], 0, nil)
	}, []string{"IW-READ"}, nil},
	{"more READs than agreed", func(s *script) {
		s.opens(func(_, reply *mpa.Frame) { reply.IRD = 1 })
		for range 3 {
			s.stream(fromA, iwReadRequest(100))
		}
		for range 3 {
			s.stream(fromB, iwReadResponse(100))
		}
	}, []string{"IW-RD"}, nil},
	{"TCP repeats", func(s *script) {
		s.opens(nil)
		s.iwTraffic()
		at := s.sent[fromA]
		s.stream(fromA, iwWrite(100))
		s.now += 200 * time.Millisecond
		s.segment(fromA, at, 0, iwWrite(100))
		s.segment(fromB, s.sent[fromB], 0, nil)
		s.iwTraffic()
	}, []string{"IW-LOSS"}, nil},
	{"a peer that is gone", func(s *script) {
		s.opens(nil)
		s.iwTraffic()
		acked := s.sent[fromB]
		at := s.sent[fromA]
		s.stream(fromA, iwWrite(100))
		for i := range 4 {
			s.now += 200 * time.Millisecond << i
			s.segment(fromA, at, 0, iwWrite(100))
		}
		s.sent[fromB] = acked
	}, []string{"IW-LOSS", "IW-SILENT"}, nil},
	{"a closed window", func(s *script) {
		s.opens(nil)
		s.iwTraffic()
		s.segment(fromB, s.sent[fromB], 0, nil)
		f := s.frames[len(s.frames)-1].Data
		f[34], f[35] = 0, 0
	}, nil, []string{"IW-WINDOW"}},
}

// A Terminate message is told in words, with what it is about and a remedy of its own.
func TestTerminate(t *testing.T) {
	for _, tt := range []struct {
		code         iwarp.Code
		words, first string
		side         diagnose.Side
	}{
		{0x1100, "invalid STag: no such memory region (layer 1, type 1, code 0x00)", "Does the region still exist", diagnose.OfProgram},
		{0x1202, "no buffer", "A SEND came before its receive", diagnose.OfProgram},
		{0x1205, "too long", "post larger receives", diagnose.OfProgram},
		{0x2002, "CRC error", "Bytes were damaged", diagnose.OfNetwork},
		{0x0207, "catastrophic error, of the connection", "Both queue pairs", diagnose.OfProgram},
		{0x7777, "unknown error (layer 7, type 7, code 0x77)", "Both queue pairs", diagnose.OfProgram},
	} {
		s := newScript()
		s.opens(nil)
		s.stream(fromB, iwTerminate(tt.code, &iwarp.Header{Tagged: true, Op: iwarp.Write, STag: 0xbadcafe, TO: 0x7f00dead0000}))
		r := s.report(diagnose.Options{})
		if len(r.Findings) != 1 {
			t.Errorf("%#04x: %v", uint16(tt.code), idsOf(r.Findings))
			continue
		}
		f := r.Findings[0]
		if !strings.Contains(f.Words, "10.1.0.2 says: ") || !strings.Contains(f.Words, tt.words) || !strings.Contains(f.Words, "RDMA Write to offset 0x7f00dead0000 of STag 0x0badcafe") || !strings.Contains(f.Remedy[0], tt.first) || f.Side != tt.side {
			t.Errorf("%#04x: %q, look at %v, %q; want %q, %v and %q", uint16(tt.code), f.Words, f.Side, f.Remedy[0], tt.words, tt.side, tt.first)
		}
	}
}

// What is kept of TCP stays within its limits, whatever comes.
func TestManyStreams(t *testing.T) {
	s := newScript()
	a := diagnose.New(diagnose.Options{})
	for i := range 5000 {
		s.frames, s.sent = s.frames[:0], [2]uint32{}
		s.a = netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)})
		s.opens(nil)
		for range 20 { // behind a hole
			s.sent[fromA] += 10
			s.stream(fromA, make([]byte, 1400))
		}
		for _, f := range s.frames {
			a.Frame(f)
		}
	}
	r := a.Report()
	if len(r.Findings) > 0 || !slices.ContainsFunc(r.Unchecked, func(s string) bool { return strings.Contains(s, "iWARP connections were forgotten early") }) {
		t.Errorf("%v, not checked: %q; want that connections were forgotten", idsOf(r.Findings), r.Unchecked)
	}
}

// docs/DIAGNOSE.md has the findings of iWARP's faults.
func TestIWARPDocument(t *testing.T) {
	var rows strings.Builder
	rows.WriteString("| what happens over iWARP | finding |\n|---|---|\n")
	for _, c := range iwarpScripts {
		ids := append(slices.Clone(c.findings), c.notes...)
		rows.WriteString("| " + c.name + " | " + cmp.Or(strings.Join(ids, ", "), "nothing") + " |\n")
	}
	compareDocument(t, "iwarp", rows.String())
}

// Of streams that the capture does not have all of, what is there is looked at, and what is not is named.
func TestIncomplete(t *testing.T) {
	cut := func(s *script, n int) {
		f := &s.frames[len(s.frames)-1]
		f.Data = f.Data[:min(n, len(f.Data))]
	}
	for _, tt := range []struct {
		name  string
		play  func(s *script)
		fpdus int
		holes bool
	}{
		{"nothing is missing", func(s *script) { s.iwTraffic() }, 5, false},
		{"a hole that was acknowledged", func(s *script) {
			s.iwTraffic()
			s.sent[fromA] += 5000
			s.stream(fromA, iwWrite(10))
			s.stream(fromA, iwWrite(20))
			s.segment(fromB, s.sent[fromB], 0, nil)
		}, 7, true},
		{"an FPDU of several segments, all of them cut", func(s *script) {
			for part := range slices.Chunk(iwWrite(3000), 1000) {
				s.stream(fromA, part)
				cut(s, 100)
			}
			s.iwTraffic()
		}, 6, false},
		{"an FPDU in the part of a segment that was cut off", func(s *script) {
			s.stream(fromA, slices.Concat(iwWrite(500), iwWrite(500)))
			cut(s, 100)
			s.iwTraffic()
		}, 6, true},
	} {
		s := newScript()
		s.opens(nil)
		tt.play(s)
		r := s.report(diagnose.Options{})
		holes := slices.ContainsFunc(r.Unchecked, func(s string) bool { return strings.Contains(s, "were not all captured") })
		if r.FPDUs != tt.fpdus || holes != tt.holes || len(r.Findings) > 0 {
			t.Errorf("%s: %d FPDUs, holes: %v, %v; want %d, %v, no finding", tt.name, r.FPDUs, holes, idsOf(r.Findings), tt.fpdus, tt.holes)
		}
	}
}

package iwarp

import (
	"bytes"
	"testing"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/mpa"
	"github.com/adverb-rdma/adverb/verbs"
)

// The memory of a fuzzed end. Behind each area, and before the first, is memory that nobody may read or write.
const (
	fuzzGuard = 64
	fuzzSize  = 256 // of an area

	recvSize = 100
	sinkSize = 40
	hidden   = 0xa7 // fills the memory
)

const (
	fuzzOpen   = iota // the peer may do everything
	fuzzReads         // it may read
	fuzzRecv          // of a receive of recvSize bytes
	fuzzSink          // of a READ of sinkSize bytes
	fuzzLocal         // nobody's
	fuzzOthers        // of another PD
	fuzzAreas
)

// fuzzMemory are the areas.
type fuzzMemory struct {
	bytes, before []byte
	areas         [fuzzAreas]*mem.MR
}

func fuzzPlace(i int) int { return fuzzGuard + i*(fuzzSize+fuzzGuard) }

func newFuzzMemory(e *testEnd, keys *mem.Keys) *fuzzMemory {
	m := &fuzzMemory{bytes: bytes.Repeat([]byte{hidden}, fuzzPlace(fuzzAreas))}
	for i, access := range [fuzzAreas]verbs.Access{everything, verbs.AccessRemoteRead, verbs.AccessLocalWrite, verbs.AccessLocalWrite, verbs.AccessLocalWrite, everything} {
		pd := e.pd
		if i == fuzzOthers {
			pd = keys.NewPD()
		}
		b := m.bytes[fuzzPlace(i):][:fuzzSize]
		if access&verbs.AccessRemoteRead != 0 && i != fuzzOthers {
			clear(b)
		}
		r, err := pd.RegMR(verbs.MRAttr{Buf: b, Access: access, IOVA: fuzzAddr(i), HasIOVA: true})
		e.ok(err)
		e.t.Cleanup(func() { r.Close() })
		m.areas[i] = r.(*mem.MR)
	}
	m.before = bytes.Clone(m.bytes)
	return m
}

func fuzzAddr(i int) uint64 { return uint64(i+1) << 16 }

// check compares all memory that the peer may not write with its contents before.
func (m *fuzzMemory) check(t *testing.T) {
	t.Helper()
	copy(m.before[fuzzPlace(fuzzOpen):], m.bytes[fuzzPlace(fuzzOpen):][:fuzzSize])
	copy(m.before[fuzzPlace(fuzzRecv):], m.bytes[fuzzPlace(fuzzRecv):][:recvSize])
	copy(m.before[fuzzPlace(fuzzSink):], m.bytes[fuzzPlace(fuzzSink):][:sinkSize])
	if bytes.Equal(m.bytes, m.before) {
		return
	}
	for i := range m.bytes {
		if m.bytes[i] != m.before[i] {
			t.Fatalf("byte %d behind the beginning of area %d was written, want it as it was", (i-fuzzGuard)%(fuzzSize+fuzzGuard), (i-fuzzGuard)/(fuzzSize+fuzzGuard))
		}
	}
}

// fuzzEnd makes an end with memory, a receive, and a READ under way. Its keys are the same each time.
func fuzzEnd(t testing.TB, markers bool) (*testEnd, *fuzzMemory) {
	seed := uint32(7)
	keys := mem.NewKeys(64, func() uint32 { seed = seed*1664525 + 1013904223; return seed })
	e := newTestEnd(t, keys, 3)
	y := deep
	y.Markers = markers
	request := deep.Request()
	request.RTR = mpa.RTRWrite
	_, terms := y.Answer(&request)
	e.ok(e.q.Attach(terms))
	m := newFuzzMemory(e, keys)
	e.recv(1, sge(m.areas[fuzzRecv], 0, recvSize-40), sge(m.areas[fuzzRecv], recvSize-40, 40))
	write := Header{Tagged: true, Last: true, Op: Write} // which says that the peer is ready
	if b := e.fpdus(markers, write.AppendTo(nil)); e.q.Receive(b) != len(b) {
		t.Fatal("the peer is not ready")
	}
	e.post(verbs.SendWR{ID: 2, Op: verbs.OpRDMARead, SGList: []verbs.SGE{sge(m.areas[fuzzSink], 0, sinkSize)}, Remote: verbs.RemoteAddr{VA: 1, RKey: 1}})
	for e.transmit(1 << 20) {
	}
	return e, m
}

// fpdus frames segments, in a stream that begins.
func (e *testEnd) fpdus(markers bool, segments ...[]byte) []byte {
	var all []byte
	for _, s := range segments {
		all = append(all, fpdu(s)...)
	}
	if markers {
		all = new(mpa.Marks).Append(nil, all)
	}
	return all
}

// FuzzReceive has an end take any bytes, in two pieces. It may not panic, and uses all that an FPDU can be. Only
// memory changes that the peer may write, no byte is sent that the peer may not read, and no work request
// completes twice.
func FuzzReceive(f *testing.F) {
	_, m := fuzzEnd(f, false)
	stag := func(i int) uint32 { return uint32(m.areas[i].RKey()) }
	segment := func(h Header, body []byte) []byte { return append(h.AppendTo(nil), body...) }
	data := bytes.Repeat([]byte{1}, 60)
	read := ReadReq{SinkSTag: 1, Size: 60, SrcSTag: stag(fuzzReads), SrcTO: fuzzAddr(fuzzReads) + fuzzSize - 60}
	beyond := read
	beyond.SrcTO += 8
	for _, s := range [][]byte{
		segment(Header{Tagged: true, Last: true, Op: Write, STag: stag(fuzzOpen), TO: fuzzAddr(fuzzOpen) + fuzzSize - 60}, data),
		segment(Header{Tagged: true, Last: true, Op: Write, STag: stag(fuzzOpen), TO: fuzzAddr(fuzzOpen) + fuzzSize - 56}, data),
		segment(Header{Last: true, Op: ReadRequest, QN: 1, MSN: 1}, beyond.AppendTo(nil)),
		segment(Header{Tagged: true, Last: true, Op: Write, STag: stag(fuzzOthers), TO: fuzzAddr(fuzzOthers)}, data),
		segment(Header{Tagged: true, Last: true, Op: ReadResponse, STag: uint32(m.areas[fuzzSink].LKey()), TO: fuzzAddr(fuzzSink)}, data[:sinkSize]),
		segment(Header{Tagged: true, Last: true, Op: ReadResponse, STag: stag(fuzzSink), TO: fuzzAddr(fuzzSink)}, data[:sinkSize]),
		segment(Header{Last: true, Op: Send, MSN: 1}, data), segment(Header{Op: Send, MSN: 1}, data),
		segment(Header{Last: true, Op: ReadRequest, QN: 1, MSN: 1}, read.AppendTo(nil)),
		segment(Header{Last: true, Op: AtomicRequest, QN: 1, MSN: 1}, data), segment(Header{Last: true, Op: Terminate, QN: 2, MSN: 1}, data),
		segment(Header{Last: true, Op: Immediate, MSN: 1}, data[:8]),
	} {
		ready := fpdu(segment(Header{Tagged: true, Last: true, Op: Write}, nil))
		f.Add(false, false, uint16(9), fpdu(s))
		f.Add(false, true, uint16(30), append(fpdu(s), fpdu(s)...))
		marked := new(mpa.Marks).Append(nil, append(ready, fpdu(s)...))
		f.Add(true, false, uint16(20), marked[len(new(mpa.Marks).Append(nil, ready)):])
	}
	f.Fuzz(func(t *testing.T, markers, direct bool, cut uint16, b []byte) {
		e, m := fuzzEnd(t, markers)
		sent := len(e.sent)
		peer := &testEnd{t: t}
		at := min(int(cut), len(b))
		for _, piece := range [][]byte{b[:at], b[at:]} {
			peer.out = append(peer.out[:0], piece...)
			e.receive(peer, len(piece), direct)
			if len(e.in) >= mpa.MaxMarkedFPDU {
				t.Errorf("%d bytes are left, as much as an FPDU can be, want fewer", len(e.in))
			}
			for e.transmit(1 << 20) {
			}
			m.check(t)
		}
		if bytes.Contains(e.sent[sent:], bytes.Repeat([]byte{hidden}, 8)) && !bytes.Contains(b, bytes.Repeat([]byte{hidden}, 4)) {
			t.Fatalf("what may not be read was sent: %x, want it kept", e.sent[sent:])
		}
		e.ok(e.q.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
		e.take()
		m.check(t)
		var done [3]int
		for _, wc := range e.wcs {
			if wc.ID > 2 || wc.ID == 0 || (wc.ID == 1) != (wc.Op&verbs.WCRecv != 0) || wc.Status == verbs.WCSuccess && int(wc.ByteLen) > recvSize && wc.Op == verbs.WCRecv {
				t.Fatalf("completion %+v, of nothing that was posted, want one that fits", wc)
			}
			if done[wc.ID]++; done[wc.ID] > 1 {
				t.Fatalf("work request %d completes a second time: %+v, want one completion", wc.ID, wc)
			}
		}
		if done[2] == 0 {
			t.Fatal("the READ never completes")
		}
	})
}

package iwarp

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/adverb-rdma/adverb/internal/mpa"
	"github.com/adverb-rdma/adverb/verbs"
)

// fpdu frames a segment, without a CRC.
func fpdu(ulpdu []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(ulpdu)))
	b = append(b, ulpdu...)
	return append(b, make([]byte, mpa.TrailerSize(len(ulpdu)))...)
}

// target is the knowledge of a hostile peer of an end: a key for memory.
type target struct{ rkey verbs.RKey }

// TestHostilePeer: a peer that does not keep to the protocol ends its own connection, and reaches no memory
// that it was not given.
func TestHostilePeer(t *testing.T) {
	segment := func(h Header, payload ...byte) []byte { return fpdu(append(h.AppendTo(nil), payload...)) }
	send := func(change func(*Header)) []byte {
		h := Header{Op: Send, Last: true, MSN: 1}
		change(&h)
		return segment(h, 1, 2, 3, 4)
	}
	response := func(_ target, sink verbs.SGE, change func(*Header), n int) []byte {
		h := Header{Op: ReadResponse, Tagged: true, Last: true, STag: uint32(sink.LKey), TO: sink.Addr}
		change(&h)
		return segment(h, bytes.Repeat([]byte{0xee}, n)...)
	}
	for name, c := range map[string]struct {
		hostile func(b target, sink verbs.SGE) []byte
		reads   bool // a READ of 8 bytes is outstanding
		ok      bool // for once all is right
		access  verbs.Access
	}{
		"a SEND":                      {hostile: func(target, verbs.SGE) []byte { return send(func(*Header) {}) }, ok: true},
		"a SEND before its turn":      {hostile: func(target, verbs.SGE) []byte { return send(func(h *Header) { h.MSN = 2 }) }},
		"a SEND that begins further":  {hostile: func(target, verbs.SGE) []byte { return send(func(h *Header) { h.MO = 4 }) }},
		"a SEND in the READs' queue":  {hostile: func(target, verbs.SGE) []byte { return send(func(h *Header) { h.QN = 1 }) }},
		"an empty FPDU in the stream": {hostile: func(target, verbs.SGE) []byte { return append(send(func(*Header) {}), fpdu(nil)...) }},
		"a response to nothing":       {hostile: func(b target, s verbs.SGE) []byte { return response(b, s, func(*Header) {}, 8) }},
		"a response":                  {hostile: func(b target, s verbs.SGE) []byte { return response(b, s, func(*Header) {}, 8) }, reads: true, ok: true},
		"a response to another key":   {hostile: func(b target, s verbs.SGE) []byte { return response(b, s, func(h *Header) { h.STag ^= 1 }, 8) }, reads: true},
		"a response further on":       {hostile: func(b target, s verbs.SGE) []byte { return response(b, s, func(h *Header) { h.TO += 4 }, 4) }, reads: true},
		"a response that is longer":   {hostile: func(b target, s verbs.SGE) []byte { return response(b, s, func(*Header) {}, 9) }, reads: true},
		"a response that is shorter":  {hostile: func(b target, s verbs.SGE) []byte { return response(b, s, func(*Header) {}, 7) }, reads: true},
		"a response that never ends":  {hostile: func(b target, s verbs.SGE) []byte { return response(b, s, func(h *Header) { h.Last = false }, 8) }, reads: true},
		"a WRITE that the QP does not": {access: verbs.AccessRemoteRead, hostile: func(b target, s verbs.SGE) []byte {
			return segment(Header{Op: Write, Tagged: true, Last: true, STag: uint32(s.LKey), TO: s.Addr}, 1)
		}},
		"more READs than were agreed on": {hostile: func(b target, s verbs.SGE) (all []byte) {
			for i := range uint32(deep.IRD) + 2 { // one is for the READ that says the peer is ready
				r := ReadReq{SinkSTag: 1, Size: 8, SrcSTag: uint32(b.rkey), SrcTO: s.Addr}
				all = append(all, segment(Header{Op: ReadRequest, Last: true, QN: 1, MSN: 1 + i}, r.AppendTo(nil)...)...)
			}
			return all
		}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newPair(t, deep, deep, mpa.RTRWrite)
			runAll(a, b)
			if c.access != 0 {
				b.ok(b.q.Modify(&verbs.QPAttr{Access: c.access}, verbs.MaskAccessFlags))
			}
			own, inbox := b.region(16, everything), b.region(16, everything)
			b.recv(1, sge(inbox, 0, 16))
			b.recv(2, sge(inbox, 0, 16))
			if c.reads {
				b.post(verbs.SendWR{ID: 7, Op: verbs.OpRDMARead, SGList: []verbs.SGE{sge(own, 0, 8)}, Remote: remote(a.region(8, everything), 0)})
				b.transmit(1 << 20)
			}
			key := sge(own, 0, 8)
			a.out = c.hostile(target{own.RKey()}, verbs.SGE{Addr: key.Addr, LKey: key.LKey})
			b.receive(a, 1<<20, false)
			if ok := b.q.State() == verbs.QPStateRTS; ok != c.ok {
				t.Errorf("the QP is in %v, want it to take that: %v", b.q.State(), c.ok)
			}
			if !c.ok && !bytes.Equal(own.Bytes(), make([]byte, 16)) {
				t.Errorf("memory has changed: %x, want zeroes", own.Bytes())
			}
		})
	}
}

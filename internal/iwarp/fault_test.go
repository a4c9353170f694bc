package iwarp

import (
	"bytes"
	"slices"
	"testing"

	"github.com/adverb-rdma/adverb/internal/mpa"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestFaults: a segment that breaks a rule is answered by one Terminate message with the code of that rule, and the
// header of the segment where there is one. The Terminate message is the last message. Neither the segment is
// placed nor the bytes behind it.
func TestFaults(t *testing.T) {
	const room = 16 // bytes of each of two receives
	segment := func(h Header, payload ...byte) []byte { return fpdu(append(h.AppendTo(nil), payload...)) }
	send := func(h Header, n int) []byte {
		h.Op = Send
		return segment(h, bytes.Repeat([]byte{0xee}, n)...)
	}
	changed := func(b []byte, at int, to byte) []byte {
		b[mpa.LengthSize+at] = to
		return b
	}
	own := Header{Op: Send, Last: true, MSN: 1}
	imm := func(msn uint32) []byte {
		return segment(Header{Op: Immediate, Last: true, MSN: msn}, make([]byte, 8)...)
	}
	read := func(h Header, r ReadReq) []byte {
		h.Op, h.QN, h.MSN = ReadRequest, 1, max(h.MSN, 1)
		return segment(h, r.AppendTo(nil)...)
	}
	atomic := func(r AtomicReq) []byte {
		return segment(Header{Op: AtomicRequest, Last: true, QN: 1, MSN: 1}, r.AppendTo(nil)...)
	}
	write := func(stag uint32, to uint64, n int) []byte {
		return segment(Header{Op: Write, Tagged: true, Last: true, STag: stag, TO: to}, bytes.Repeat([]byte{0xee}, n)...)
	}
	const unknown = 0x123400
	for _, c := range []struct {
		name  string
		bytes func(stag uint32, to uint64) []byte // with a key for 16 bytes
		code  Code                                // or 0, if all is right
	}{
		{"DDP version, tagged", func(k uint32, to uint64) []byte { return changed(write(k, to, 4), 0, 0xc2) }, taggedVersion},
		{"DDP version, untagged", func(uint32, uint64) []byte { return changed(send(own, 4), 0, 0x42) }, untaggedVersion},
		{"RDMAP version", func(uint32, uint64) []byte { return changed(send(own, 4), 1, 0x83) }, rdmapVersion},
		{"RDMAP version before", func(uint32, uint64) []byte { return changed(send(own, 4), 1, 0x03) }, rdmapVersion},
		{"reserved opcode", func(uint32, uint64) []byte { return changed(send(own, 4), 1, 0x4f) }, rdmapOpcode},
		{"queue of another message", func(uint32, uint64) []byte { return send(Header{Last: true, MSN: 1, QN: 1}, 4) }, untaggedQueue},
		{"queue that is not there", func(uint32, uint64) []byte { return send(Header{Last: true, MSN: 1, QN: 9}, 4) }, untaggedQueue},
		{"number ahead", func(uint32, uint64) []byte { return send(Header{Last: true, MSN: 2}, 4) }, untaggedMSN},
		{"number of before", func(uint32, uint64) []byte { return slices.Concat(send(own, 4), send(own, 4)) }, untaggedMSN},
		{"offset ahead", func(uint32, uint64) []byte { return send(Header{Last: true, MSN: 1, MO: 4}, 4) }, untaggedOffset},
		{"offset that leaves a gap", func(uint32, uint64) []byte {
			return slices.Concat(send(Header{MSN: 1}, 4), send(Header{Last: true, MSN: 1, MO: 8}, 4))
		}, untaggedOffset},
		{"message beyond its receive", func(uint32, uint64) []byte { return send(own, room+1) }, untaggedTooLong},
		{"second segment beyond the receive", func(uint32, uint64) []byte {
			return slices.Concat(send(Header{MSN: 1}, room), send(Header{Last: true, MSN: 1, MO: room}, 1))
		}, untaggedTooLong},
		{"no receive", func(uint32, uint64) []byte {
			return slices.Concat(send(own, 4), send(Header{Last: true, MSN: 2}, 4), send(Header{Last: true, MSN: 3}, 4))
		}, untaggedNoBuffer},
		{"no receive for immediate data", func(uint32, uint64) []byte { return slices.Concat(imm(1), imm(2), imm(3)) }, untaggedNoBuffer},
		{"immediate data in two segments", func(uint32, uint64) []byte { return segment(Header{Op: Immediate, MSN: 1}, make([]byte, 8)...) }, ddpCatastrophic},
		{"immediate data of nine bytes", func(uint32, uint64) []byte {
			return segment(Header{Op: Immediate, Last: true, MSN: 1}, make([]byte, 9)...)
		}, ddpCatastrophic},
		{"WRITE by an unknown STag", func(_ uint32, to uint64) []byte { return write(unknown, to, 4) }, taggedInvalidSTag},
		{"WRITE before the memory", func(k uint32, to uint64) []byte { return write(k, to-1, 4) }, taggedBounds},
		{"WRITE behind the memory", func(k uint32, to uint64) []byte { return write(k, to+13, 4) }, taggedBounds},
		{"WRITE that wraps", func(k uint32, _ uint64) []byte { return write(k, ^uint64(0)-1, 4) }, taggedWrap},
		{"READ by an unknown STag", func(_ uint32, to uint64) []byte {
			return read(Header{Last: true}, ReadReq{Size: 4, SrcSTag: unknown, SrcTO: to})
		}, rdmapInvalidSTag},
		{"READ behind the memory", func(k uint32, to uint64) []byte {
			return read(Header{Last: true}, ReadReq{Size: 4, SrcSTag: k, SrcTO: to + 13})
		}, rdmapBounds},
		{"READ that wraps", func(k uint32, _ uint64) []byte {
			return read(Header{Last: true}, ReadReq{Size: 4, SrcSTag: k, SrcTO: ^uint64(0) - 1})
		}, rdmapWrap},
		{"READ request in two segments", func(k uint32, to uint64) []byte { return read(Header{}, ReadReq{Size: 4, SrcSTag: k, SrcTO: to}) }, ddpCatastrophic},
		{"READ request ahead", func(k uint32, to uint64) []byte {
			return read(Header{Last: true, MSN: 2}, ReadReq{Size: 4, SrcSTag: k, SrcTO: to})
		}, untaggedMSN},
		{"READs beyond the agreed number", func(k uint32, to uint64) (all []byte) {
			for i := range uint32(deep.IRD) + 2 {
				all = append(all, read(Header{Last: true, MSN: 1 + i}, ReadReq{Size: 4, SrcSTag: k, SrcTO: to})...)
			}
			return all
		}, untaggedNoBuffer},
		{"atomics beyond the agreed number", func(k uint32, to uint64) (all []byte) {
			for i := range uint32(deep.IRD) + 2 {
				h := Header{Op: AtomicRequest, Last: true, QN: 1, MSN: 1 + i}
				all = append(all, segment(h, (&AtomicReq{Op: FetchAdd, STag: k, TO: to}).AppendTo(nil)...)...)
			}
			return all
		}, untaggedNoBuffer},
		{"response to no READ", func(k uint32, to uint64) []byte {
			return segment(Header{Op: ReadResponse, Tagged: true, Last: true, STag: k, TO: to}, 0xee)
		}, rdmapOpcode},
		{"response to no atomic", func(uint32, uint64) []byte {
			return segment(Header{Op: AtomicResponse, Last: true, QN: 3, MSN: 1}, (&AtomicResp{ID: 1}).AppendTo(nil)...)
		}, rdmapOpcode},
		{"atomic that is not aligned", func(k uint32, to uint64) []byte { return atomic(AtomicReq{Op: FetchAdd, STag: k, TO: to + 4}) }, rdmapOperationUnknown},
		{"atomic of parts of a word", func(k uint32, to uint64) []byte {
			return atomic(AtomicReq{Op: FetchAdd, STag: k, TO: to, DataMask: 1 << 31})
		}, rdmapOperationUnknown},
		{"Swap", func(k uint32, to uint64) []byte { return atomic(AtomicReq{Op: 1, STag: k, TO: to}) }, rdmapOperationUnknown},
		{"atomic by an unknown STag", func(_ uint32, to uint64) []byte { return atomic(AtomicReq{Op: FetchAdd, STag: unknown, TO: to}) }, rdmapInvalidSTag},
		{"atomic behind the memory", func(k uint32, to uint64) []byte { return atomic(AtomicReq{Op: FetchAdd, STag: k, TO: to + 16}) }, rdmapBounds},
		{"empty FPDU in the stream", func(uint32, uint64) []byte { return fpdu(nil) }, mpaFrame},
		{"empty WRITE by an unknown STag", func(_ uint32, to uint64) []byte { return write(unknown, to, 0) }, 0},
		{"empty READ by an unknown STag", func(_ uint32, to uint64) []byte {
			return read(Header{Last: true}, ReadReq{SrcSTag: unknown, SrcTO: to})
		}, 0},
		{"segments of two queues that alternate", func(k uint32, to uint64) []byte {
			return slices.Concat(send(Header{MSN: 1}, 4), readBetween(k, to), send(Header{Last: true, MSN: 1, MO: 4}, 4))
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := newPair(t, deep, deep, mpa.RTRWrite)
			runAll(a, b)
			mine, inbox := b.region(16, everything), b.region(2*room, everything)
			b.recv(1, sge(inbox, 0, room))
			b.recv(2, sge(inbox, room, room))
			at := remote(mine, 0)
			stag := uint32(at.RKey)
			behind := write(stag, at.VA, 4)
			a.out = slices.Concat(c.bytes(stag, at.VA), behind)
			b.receive(a, 1<<20, false)
			if c.code == 0 {
				if b.q.State() != verbs.QPStateRTS || mine.Bytes()[0] != 0xee {
					t.Errorf("the QP is in %v for %v, memory %x; want RTS, and what came behind placed", b.q.State(), b.q.Failure(), mine.Bytes())
				}
				return
			}
			b.sent = nil
			for b.transmit(1 << 20) {
			}
			if !bytes.Equal(mine.Bytes(), make([]byte, 16)) {
				t.Errorf("memory has changed: %x, want zeroes", mine.Bytes())
			}
			h, n, err := DecodeHeader(b.sent[mpa.LengthSize:])
			if size := mpa.Length(b.sent); err != nil || h.Op != Terminate || h.QN != 2 || h.MSN != 1 || len(b.sent) != mpa.LengthSize+size+mpa.TrailerSize(size) {
				t.Fatalf("got %v, %v in %d bytes; want one Terminate message, and nothing else", &h, err, len(b.sent))
			}
			m, err := DecodeTermMsg(b.sent[mpa.LengthSize+n:][:mpa.Length(b.sent)-n])
			if err != nil || m.Code != c.code {
				t.Errorf("it says %v, %v; want %v", m.Code, err, c.code)
			}
			if b.q.State() != verbs.QPStateErr || !b.q.Finished() {
				t.Errorf("the QP is in %v, finished %v; want the error state, and an end", b.q.State(), b.q.Finished())
			}
		})
	}
}

// readBetween is a READ request, which may stand between the segments of a SEND.
func readBetween(stag uint32, to uint64) []byte {
	h := Header{Op: ReadRequest, Last: true, QN: 1, MSN: 1}
	return fpdu((&ReadReq{Size: 4, SrcSTag: stag, SrcTO: to}).AppendTo(h.AppendTo(nil)))
}

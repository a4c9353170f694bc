package lab

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// verbsOp is an operation, and a function that performs it and checks its effects.
type verbsOp struct {
	name string
	run  func(t *testing.T, from, to verbsEnd, sizes []int)
}

var verbsOps = []verbsOp{
	{"SEND", func(t *testing.T, from, to verbsEnd, sizes []int) { sends(t, from, to, sizes, verbs.OpSend) }},
	{"SEND_WITH_IMM", func(t *testing.T, from, to verbsEnd, sizes []int) { sends(t, from, to, sizes, verbs.OpSendWithImm) }},
	{"WRITE", func(t *testing.T, from, to verbsEnd, sizes []int) { writes(t, from, to, sizes, verbs.OpRDMAWrite) }},
	{"WRITE_WITH_IMM", func(t *testing.T, from, to verbsEnd, sizes []int) {
		writes(t, from, to, sizes, verbs.OpRDMAWriteWithImm)
	}},
	{"READ", reads},
	{"FETCH_ADD", fetchAdds},
	{"CMP_SWAP", compareSwaps},
}

const testImm = 0x01020304 // all bytes differ, so that a wrong order shows

// messageSizes returns the smallest size, one that needs padding, one packet, one packet and a
// byte, and many packets.
func messageSizes(mtu int) []int {
	m := pathMTU(mtu)
	return []int{1, 1021, m, m + 1, 40*m - 2}
}

func TestVerbsOperations(t *testing.T) {
	needLab(t)
	for _, mtu := range mtus {
		for _, op := range verbsOps {
			for _, responder := range []string{"kernel", "adverb"} {
				for _, v6 := range []bool{false, true} {
					s := scenario{family: "Verbs", program: "RC " + op.name, server: responder, v6: v6, mtu: mtu, variant: "sizes"}
					s.pair(t, pairOptions{}, func(ctx context.Context, t *testing.T, p *verbsPair) {
						from, to := p.ends(responder)
						op.run(t, from, to, messageSizes(mtu))
						wantState(t, verbs.QPStateRTS, from, to)
					})
				}
			}
		}
	}
}

func sends(t *testing.T, from, to verbsEnd, sizes []int, op verbs.Opcode) {
	t.Helper()
	n := sizes[len(sizes)-1]
	src, data := filled(from, n, 1)
	for i, size := range sizes {
		dst := to.mem(n, everything)
		id := uint64(i)
		half := size / 2 // either end has two SGEs, which divide the message differently
		to.recv(verbs.RecvWR{ID: id, SGList: []verbs.SGE{dst.sge(0, n-half), dst.sge(n-half, half)}})
		from.send(verbs.SendWR{ID: id, Op: op, Flags: signaled, Imm: testImm, SGList: []verbs.SGE{src.sge(0, half), src.sge(half, size-half)}})
		done(t, from, id, verbs.WCSend)
		wc := done(t, to, id, verbs.WCRecv)
		if wc.ByteLen != uint32(size) {
			t.Errorf("received %d bytes, want %d", wc.ByteLen, size)
		}
		checkImm(t, wc, op == verbs.OpSendWithImm)
		same(t, fmt.Sprint("size ", size), dst.get(0, n), append(data[:size:size], make([]byte, n-size)...))
	}
}

// stream posts count work requests, depth at a time, and calls finish when the oldest has to be complete.
func stream(from verbsEnd, count, depth int, wr func(i int) verbs.SendWR, finish func(i int)) {
	for posted, finished := 0, 0; finished < count; finished++ {
		for ; posted < count && posted-finished < depth; posted++ {
			w := wr(posted)
			w.ID, w.Flags = uint64(posted), signaled
			from.send(w)
		}
		finish(finished)
	}
}

func checkImm(t *testing.T, wc verbs.WC, want bool) {
	t.Helper()
	if has := wc.Flags&verbs.WCFlagWithImm != 0; has != want || has && wc.Imm != testImm {
		t.Errorf("completion with flags %v and immediate %#x, want immediate %#x: %v", wc.Flags, wc.Imm, testImm, want)
	}
}

func writes(t *testing.T, from, to verbsEnd, sizes []int, op verbs.Opcode) {
	t.Helper()
	n := sizes[len(sizes)-1]
	src, data := filled(from, n, 2)
	for i, size := range sizes {
		const off = 3
		dst := to.mem(n+2*off, everything)
		id := uint64(i)
		if op == verbs.OpRDMAWriteWithImm {
			to.recv(verbs.RecvWR{ID: id, SGList: []verbs.SGE{dst.sge(0, 1)}})
		}
		from.send(verbs.SendWR{ID: id, Op: op, Flags: signaled, Imm: testImm, SGList: []verbs.SGE{src.sge(0, size)}, Remote: dst.remote(off)})
		done(t, from, id, verbs.WCRDMAWrite)
		if op == verbs.OpRDMAWriteWithImm {
			wc := done(t, to, id, verbs.WCRecvRDMAWithImm)
			checkImm(t, wc, true)
			if wc.ByteLen != uint32(size) {
				t.Errorf("the completion says %d bytes, want %d", wc.ByteLen, size)
			}
		}
		want := make([]byte, n+2*off)
		copy(want[off:], data[:size])
		same(t, fmt.Sprint("size ", size), dst.get(0, len(want)), want)
	}
}

func reads(t *testing.T, from, to verbsEnd, sizes []int) {
	t.Helper()
	n := sizes[len(sizes)-1]
	src, data := filled(to, n, 3)
	for i, size := range sizes {
		dst := from.mem(n, everything)
		half := size / 2
		from.send(verbs.SendWR{ID: uint64(i), Op: verbs.OpRDMARead, Flags: signaled, Remote: src.remote(n - size),
			SGList: []verbs.SGE{dst.sge(n-half, half), dst.sge(0, size-half)}})
		// The lab's kernel does not set the length in the completion of a READ.
		done(t, from, uint64(i), verbs.WCRDMARead)
		same(t, fmt.Sprint("size ", size), append(dst.get(n-half, half), dst.get(0, size-half)...), data[n-size:])
	}
}

// word returns a region of 16 bytes whose second half is a number, in the byte order of both
// machines.
func word(e verbsEnd, v uint64) memory {
	m := e.mem(16, everything)
	m.put(8, binary.LittleEndian.AppendUint64(nil, v))
	return m
}

func wordOf(m memory) uint64 { return binary.LittleEndian.Uint64(m.get(8, 8)) }

const startWord = 0xfffffffffffffff0 // additions carry over all bytes

func fetchAdds(t *testing.T, from, to verbsEnd, _ []int) {
	t.Helper()
	target, old := word(to, startWord), word(from, 0)
	for i, add := range []uint64{1, 0x0102030405060708, 0} {
		before := wordOf(target)
		from.send(verbs.SendWR{ID: uint64(i), Op: verbs.OpAtomicFetchAdd, Flags: signaled, CompareAdd: add, Remote: target.remote(8), SGList: []verbs.SGE{old.sge(8, 8)}})
		done(t, from, uint64(i), verbs.WCFetchAdd)
		if got := wordOf(old); got != before {
			t.Errorf("fetched %#x, want %#x", got, before)
		}
		if got := wordOf(target); got != before+add {
			t.Errorf("%#x + %#x: got %#x, want %#x", before, add, got, before+add)
		}
	}
}

func compareSwaps(t *testing.T, from, to verbsEnd, _ []int) {
	t.Helper()
	target, old := word(to, startWord), word(from, 0)
	for i, step := range []struct{ compare, swap, after uint64 }{
		{startWord, 0x0102030405060708, 0x0102030405060708},
		{startWord, 1, 0x0102030405060708}, // the value differs, so it stays
	} {
		before := wordOf(target)
		from.send(verbs.SendWR{ID: uint64(i), Op: verbs.OpAtomicCmpSwap, Flags: signaled, CompareAdd: step.compare, Swap: step.swap,
			Remote: target.remote(8), SGList: []verbs.SGE{old.sge(8, 8)}})
		done(t, from, uint64(i), verbs.WCCompSwap)
		if got := wordOf(old); got != before {
			t.Errorf("fetched %#x, want %#x", got, before)
		}
		if got := wordOf(target); got != step.after {
			t.Errorf("%#x after step %d, want %#x", got, i, step.after)
		}
	}
}

package verbs_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// scattered cuts n bytes at random into pieces, which lie at random places of mr with gaps
// between.
func scattered(r *rand.Rand, mr *verbs.MR, n, pieces int) []verbs.SGE {
	at, left := 0, n
	sges := make([]verbs.SGE, pieces)
	for i := range sges {
		size := left
		if i < pieces-1 {
			size = r.IntN(left + 1)
		}
		at += r.IntN(9)
		sges[i] = mr.SGE(at, size)
		at, left = at+size, left-size
	}
	r.Shuffle(pieces, func(i, j int) { sges[i], sges[j] = sges[j], sges[i] })
	return sges
}

// gather returns the bytes that sges name, in their order.
func gather(mr *verbs.MR, sges []verbs.SGE) (b []byte) {
	for _, s := range sges {
		b = append(b, mr.Bytes()[s.Addr-mr.Addr():][:s.Length]...)
	}
	return b
}

// guarded reports whether mr has its filling wherever sges do not point.
func guarded(mr *verbs.MR, sges []verbs.SGE, filling byte) bool {
	want := bytes.Repeat([]byte{filling}, mr.Len())
	for _, s := range sges {
		off := s.Addr - mr.Addr()
		copy(want[off:][:s.Length], mr.Bytes()[off:])
	}
	return bytes.Equal(mr.Bytes(), want)
}

func fill(mr *verbs.MR, v byte) { copy(mr.Bytes(), bytes.Repeat([]byte{v}, mr.Len())) }

// TestTransfers moves messages of many sizes by every operation, gathered from and scattered to
// lists of up to 32 pieces, over a good network and over a bad one.
func TestTransfers(t *testing.T) {
	bad := rdmatest.Config{Loss: 0.02, Duplicate: 0.02, Reorder: 0.05, Corrupt: 0.01, Delay: 50 * time.Microsecond, Jitter: 20 * time.Microsecond}
	for name, c := range map[string]rdmatest.Config{"good": {}, "bad": bad, "small MTU": {MTU: 1500}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { transfers(t, c) })
		})
	}
}

func transfers(t *testing.T, c rdmatest.Config) {
	net := rdmatest.New(t, c)
	r := rand.New(rand.NewPCG(net.Seed(), 1))
	x, y := rdmatest.Connect(t, net.Device(), net.Device(), rdmatest.Options{
		Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 32, MaxRecvSGE: 32},
	})
	mtu := must(x.Device.QueryPort(1))(t).ActiveMTU.Bytes()
	sizes := []int{0, 1, 2, 3, 4, 5, 8, 255, mtu - 1, mtu, mtu + 1, 2*mtu - 1, 2 * mtu, 3*mtu + 7, 70*mtu + 1}
	local, remote := x.MR(sizes[len(sizes)-1]+32*8), y.MR(sizes[len(sizes)-1]+32*8)
	for i, size := range sizes {
		for _, pieces := range []int{1, 2, 32} {
			for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendWithImm, verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead} {
				id := uint64(i)<<32 | uint64(pieces)<<8 | uint64(op)
				transfer(t, r, x, y, local, remote, id, op, size, pieces)
			}
		}
		if t.Failed() {
			t.Fatalf("at %d bytes", size)
		}
	}
	nothing(t, x)
	nothing(t, y)
}

// transfer does one operation of x and checks the memory and the completions of both ends.
func transfer(t *testing.T, r *rand.Rand, x, y *rdmatest.Endpoint, local, remote *verbs.MR, id uint64, op verbs.Opcode, size, pieces int) {
	t.Helper()
	const filling = 0xee
	from, to := local, remote
	if op == verbs.OpRDMARead {
		from, to = remote, local
	}
	for b := from.Bytes(); len(b) >= 8; b = b[8:] {
		binary.NativeEndian.PutUint64(b, r.Uint64())
	}
	fill(to, filling)
	sges := scattered(r, local, size, pieces)
	at := r.IntN(64)
	wr := verbs.SendWR{ID: id, Op: op, Flags: verbs.SendSignaled, SGList: sges, Imm: uint32(id) ^ 0xdeadbeef, Remote: remote.Remote(at)}
	theirs := []verbs.SGE{remote.SGE(at, size)}
	sendOp, recvOp := verbs.WCRDMAWrite, verbs.WCOpcode(0)
	switch op {
	case verbs.OpSend, verbs.OpSendWithImm:
		theirs = scattered(r, remote, size, pieces)
		sendOp, recvOp = verbs.WCSend, verbs.WCRecv
	case verbs.OpRDMAWriteWithImm:
		recvOp = verbs.WCRecvRDMAWithImm
	case verbs.OpRDMARead:
		sendOp = verbs.WCRDMARead
	}
	if recvOp != 0 {
		y.Recv(recv(^id, theirs...))
	}
	x.Send(wr)
	wc := x.Done()
	if wc.ID != id || wc.Op != sendOp || wc.QPN != x.QP.QPN() || wc.Flags != 0 {
		t.Errorf("%v of %d bytes in %d pieces: %+v, want ID %d with %v, without flags", op, size, pieces, wc, id, sendOp)
	}
	if op == verbs.OpRDMARead && wc.ByteLen != uint32(size) {
		t.Errorf("READ of %d bytes: ByteLen %d, want as many", size, wc.ByteLen)
	}
	if recvOp != 0 {
		wc = y.Done()
		if wc.ID != ^id || wc.Op != recvOp || wc.ByteLen != uint32(size) || wc.QPN != y.QP.QPN() {
			t.Errorf("%v of %d bytes in %d pieces: received %+v, want ID %d with %v", op, size, pieces, wc, ^id, recvOp)
		}
		if withImm := op != verbs.OpSend; withImm != (wc.Flags == verbs.WCFlagWithImm) || withImm && wc.Imm != wr.Imm {
			t.Errorf("%v: flags %v, immediate %#x; want immediate %#x: %v", op, wc.Flags, wc.Imm, wr.Imm, withImm)
		}
	}
	there := theirs
	if op == verbs.OpRDMARead {
		there = sges
	}
	if !guarded(to, there, filling) {
		t.Errorf("%v of %d bytes in %d pieces touched memory outside, want it as it was", op, size, pieces)
	}
	if !bytes.Equal(gather(local, sges), gather(remote, theirs)) {
		t.Errorf("%v of %d bytes in %d pieces: data differ from what was sent, want the same", op, size, pieces)
	}
}

// TestAtomics runs compare-and-swap and fetch-and-add, and reads memory and the old value.
func TestAtomics(t *testing.T) {
	x, y := pair(t)
	local, remote := x.MR(32), y.MR(32)
	put := func(v uint64) { binary.NativeEndian.PutUint64(remote.Bytes()[8:], v) }
	do := func(wr verbs.SendWR) uint64 {
		t.Helper()
		wr.Flags, wr.Remote = verbs.SendSignaled, remote.Remote(8)
		wr.SGList = []verbs.SGE{local.SGE(1, 3), local.SGE(20, 5)} // the old value goes into a list as well
		x.Send(wr)
		wc := x.Done()
		wantOp := map[verbs.Opcode]verbs.WCOpcode{verbs.OpAtomicCmpSwap: verbs.WCCompSwap, verbs.OpAtomicFetchAdd: verbs.WCFetchAdd}[wr.Op]
		if wc.Op != wantOp || wc.ByteLen != 8 {
			t.Errorf("%v: completion %+v, want %v of 8 bytes", wr.Op, wc, wantOp)
		}
		return binary.NativeEndian.Uint64(gather(local, wr.SGList))
	}
	put(10)
	if old := do(verbs.SendWR{Op: verbs.OpAtomicCmpSwap, CompareAdd: 10, Swap: 1 << 63}); old != 10 || remote.Load64(8) != 1<<63 {
		t.Errorf("swap: old %d, now %#x; want 10 and 1<<63", old, remote.Load64(8))
	}
	if old := do(verbs.SendWR{Op: verbs.OpAtomicCmpSwap, CompareAdd: 10, Swap: 5}); old != 1<<63 || remote.Load64(8) != 1<<63 {
		t.Errorf("no swap: old %#x, now %#x; want 1<<63 twice", old, remote.Load64(8))
	}
	put(1<<64 - 2)
	if old := do(verbs.SendWR{Op: verbs.OpAtomicFetchAdd, CompareAdd: 5}); old != 1<<64-2 || remote.Load64(8) != 3 {
		t.Errorf("add: old %#x, now %#x; want 1<<64-2 and 3", old, remote.Load64(8))
	}
	if remote.Load64(0) != 0 || remote.Load64(16) != 0 {
		t.Error("the neighbours were touched")
	}
}

// Atomics of two peers and of the program itself lose no count.
func TestAtomicsAddUp(t *testing.T) {
	net := rdmatest.New(t)
	server := net.Device()
	const each, peers = 200, 3
	var counter *verbs.MR
	done := make(chan error, peers)
	for i := range peers {
		x, y := rdmatest.Connect(t, net.Device(), server)
		if i == 0 {
			counter = y.MR(8)
		} else { // the same memory, through a region of the other QP's PD
			counter = must(y.PD.RegMR(counter.Bytes(), rdmatest.Access))(t)
		}
		local, at := x.MR(8), counter.Remote(0)
		go func() {
			var wcs [1]verbs.WC
			for range each {
				wr := verbs.SendWR{Op: verbs.OpAtomicFetchAdd, Flags: verbs.SendSignaled, SGList: []verbs.SGE{local.SGE(0, 8)}, Remote: at, CompareAdd: 1}
				if _, err := x.QP.PostSend([]verbs.SendWR{wr}); err != nil {
					done <- err
					return
				}
				if _, err := x.CQ.Wait(t.Context(), wcs[:]); err != nil || wcs[0].Status != 0 {
					done <- fmt.Errorf("%w, %w", err, wcs[0].Err())
					return
				}
			}
			done <- nil
		}()
	}
	for range peers {
		check(t, <-done)
	}
	if n := counter.Load64(0); n != each*peers {
		t.Errorf("%d, want %d", n, each*peers)
	}
}

// TestInline sends data that may change as soon as it is posted, both ways to give it.
func TestInline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := rdmatest.New(t, rdmatest.Config{Delay: time.Millisecond})
		x, y := rdmatest.Connect(t, net.Device(), net.Device(), rdmatest.Options{
			Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 2, MaxRecvSGE: 1, MaxInlineData: 1024},
		})
		net.Partition(x.Device, y.Device) // so that the bytes that arrive in the end are read again from the send queue
		dst := y.MR(4096)
		data := bytes.Repeat([]byte("inline"), 200)[:1024]
		mr := must(x.PD.RegMR(bytes.Clone(data), 0))(t) // no local write access is needed
		own := bytes.Clone(data)
		x.Send(
			verbs.SendWR{ID: 1, Op: verbs.OpRDMAWrite, Flags: verbs.SendInline, SGList: []verbs.SGE{mr.SGE(512, 512), mr.SGE(0, 512)}, Remote: dst.Remote(0)},
			verbs.SendWR{ID: 2, Op: verbs.OpRDMAWrite, Flags: verbs.SendInline | verbs.SendSignaled, InlineData: own, Remote: dst.Remote(1024)},
			verbs.SendWR{ID: 3, Op: verbs.OpRDMAWriteWithImm, Flags: verbs.SendInline, InlineData: []byte{}, Imm: 3, Remote: dst.Remote(0)},
		)
		clear(own)
		clear(mr.Bytes())
		check(t, mr.Close())
		y.Recv(recv(4))
		<-time.After(100 * time.Millisecond) // of the bubble
		net.Heal(x.Device, y.Device)
		x.Done()
		if wc := y.Done(); wc.Imm != 3 || wc.ByteLen != 0 {
			t.Errorf("completion %+v, want immediate 3 and no bytes", wc)
		}
		want := append(append(bytes.Clone(data[512:]), data[:512]...), data...)
		if !bytes.Equal(dst.Bytes()[:2048], want) {
			t.Error("what arrived is not what was posted")
		}
	})
}

// TestSignaling: which successes make completions, by flag and by SignalAll, and that a
// completion stands for all before it.
func TestSignaling(t *testing.T) {
	for _, all := range []bool{false, true} {
		x, y := pair(t)
		qp := must(x.PD.CreateQP(verbs.QPInitAttr{SendCQ: x.CQ, RecvCQ: x.CQ, Cap: verbs.QPCap{MaxSendWR: 8, MaxSendSGE: 1}, SignalAll: all}))(t)
		peer := must(y.PD.CreateQP(verbs.QPInitAttr{SendCQ: y.CQ, RecvCQ: y.CQ}))(t)
		connect(t, qp, peer)
		src, dst := x.MR(8), y.MR(8)
		var wrs []verbs.SendWR
		for id := range uint64(6) {
			wr := write(id, src.SGE(0, 8), dst.Remote(0))
			if id != 2 && id != 5 {
				wr.Flags = 0
			}
			wrs = append(wrs, wr)
		}
		must(qp.PostSend(wrs))(t)
		want := []uint64{2, 5}
		if all {
			want = []uint64{0, 1, 2, 3, 4, 5}
		}
		for _, id := range want {
			if wc := x.Done(); wc.ID != id {
				t.Errorf("SignalAll %v: completion %d, want %d", all, wc.ID, id)
			}
		}
		nothing(t, x)
		if _, init, _ := qp.Query(); init.SignalAll != all {
			t.Errorf("SignalAll %v, want %v", init.SignalAll, all)
		}
	}
}

// connect takes two QPs in RESET to RTS.
func connect(t testing.TB, a, b *verbs.QP) {
	t.Helper()
	for _, qp := range []*verbs.QP{a, b} {
		check(t, qp.Init(1, rdmatest.Access))
	}
	check(t, a.RTR(verbs.Peer{QPN: b.QPN(), GID: gid(t, b.PD().Device())}, verbs.Path{}))
	check(t, b.RTR(verbs.Peer{QPN: a.QPN(), GID: gid(t, a.PD().Device())}, verbs.Path{}))
	check(t, a.RTS(0, verbs.DefaultRetry))
	check(t, b.RTS(0, verbs.DefaultRetry))
}

// Two QPs of one device, and a QP with itself, talk as any two.
func TestLoopback(t *testing.T) {
	d := device(t)
	x, y := rdmatest.Connect(t, d, d)
	src, dst := x.MR(5000), y.MR(5000)
	fill(src, 7)
	x.Send(write(1, src.SGE(0, 5000), dst.Remote(0)))
	x.Done()
	if !bytes.Equal(src.Bytes(), dst.Bytes()) {
		t.Error("between two QPs: data differ")
	}
	qp := must(x.PD.CreateQP(verbs.QPInitAttr{SendCQ: x.CQ, RecvCQ: x.CQ, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}}))(t)
	check(t, qp.Init(1, 0))
	check(t, qp.RTR(verbs.Peer{QPN: qp.QPN(), GID: gid(t, d)}, verbs.Path{}))
	check(t, qp.RTS(0, verbs.DefaultRetry))
	fill(src, 9)
	must(qp.PostRecv([]verbs.RecvWR{recv(1, src.SGE(2500, 2500))}))(t)
	must(qp.PostSend([]verbs.SendWR{send(2, src.SGE(0, 2500))}))(t)
	if a, b := x.Done(), x.Done(); a.ID+b.ID != 3 {
		t.Errorf("completions %+v and %+v, want IDs 1 and 2", a, b)
	}
}

// A device has GIDs of both IP versions, and connects over either.
func TestIPv6(t *testing.T) {
	x, y := pair(t, rdmatest.Options{GIDIndex: 1})
	src, dst := x.MR(9000), y.MR(9000)
	fill(src, 3)
	x.Send(write(1, src.SGE(0, 9000), dst.Remote(0)))
	x.Done()
	if !bytes.Equal(src.Bytes(), dst.Bytes()) {
		t.Error("data differ")
	}
	if a, _, _ := x.QP.Query(); a.AH.DGID.String() != "fd00::2" || a.AH.SGIDIndex != 1 {
		t.Errorf("path %+v, want it from GID 1 to fd00::2", a.AH)
	}
}

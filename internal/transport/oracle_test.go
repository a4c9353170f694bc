package transport

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// look checks the completions that are new.
func (s *sim) look(x *program) {
	for ; x.seen < len(x.sends); x.seen++ {
		got := x.sends[x.seen]
		o := x.ops[got.wc.ID]
		if o.done {
			s.t.Errorf("%s: work request %d completes twice, want once", x.name, got.wc.ID)
		}
		o.done, o.status, o.err = true, got.wc.Status, got.wc.Err()
		if want := queue.SendOpcode(o.wr.Op); got.wc.Op != want || got.wc.QPN != x.qp.cfg.QPN || got.freed != got.wc.ID+1 {
			s.t.Errorf("%s: %+v, freed %d; want %v, QPN %v and %d", x.name, got.wc, got.freed, want, x.qp.cfg.QPN, got.wc.ID+1)
		}
		if x.seen > 0 && got.wc.ID <= x.sends[x.seen-1].wc.ID {
			s.t.Errorf("%s: work request %d completes after %d, want the order of posting", x.name, got.wc.ID, x.sends[x.seen-1].wc.ID)
		}
	}
	peer := s.a
	if x == s.a {
		peer = s.b
	}
	for ; x.taken < len(x.recvd); x.taken++ {
		s.lookRecv(x, peer, x.recvd[x.taken])
	}
}

// lookRecv checks that a receive got the content of the peer's next message for one.
func (s *sim) lookRecv(x, peer *program, got recvDone) {
	if got.wc.ID != uint64(x.taken) {
		s.t.Errorf("%s: receive %d completes, want %d", x.name, got.wc.ID, x.taken)
	}
	if got.wc.Status == verbs.WCFlushErr && x.qp.State() == verbs.QPStateErr {
		return
	}
	if x.qp.cfg.Type != verbs.QPTypeRC {
		s.lookUnreliable(x, peer, got)
		return
	}
	if x.taken > 0 && x.recvd[x.taken-1].wc.Status != verbs.WCSuccess {
		s.t.Errorf("%s: receive %d completes behind a failed one, want none to", x.name, x.taken)
	}
	n := 0
	var o *simOp
	for _, p := range peer.ops {
		if p.takesRecv() {
			if n == x.taken {
				o = p
				break
			}
			n++
		}
	}
	if o == nil || o.wr.ID >= uint64(peer.posted) {
		s.t.Fatalf("%s: receive %d completes with %+v, want a message that was sent", x.name, got.wc.ID, got.wc)
	}
	if o.badAt != verbs.WCSuccess {
		if got.wc.Status != o.badAt {
			s.t.Errorf("%s: receive %d: %v, want %v", x.name, x.taken, got.wc.Status, o.badAt)
		}
		return
	}
	want, data := o.received(x, peer, got.wc.ID)
	if got.wc != want || got.solicited != (o.wr.Flags&verbs.SendSolicited != 0) {
		s.t.Errorf("%s: %+v, solicited %v; want %+v of %+v", x.name, got.wc, got.solicited, want, o.wr)
	}
	buf := x.mem.data[simRecv+int(got.wc.ID%simRecvSlots)*simRecvLen:][:simRecvLen]
	if !bytes.Equal(buf[:len(data)], data) {
		s.t.Errorf("%s: receive %d has other contents, want those of %+v", x.name, got.wc.ID, o.wr)
	}
	for _, b := range buf[len(data):] {
		if b != simUntouched {
			s.t.Errorf("%s: receive %d is written behind the end of the message, want %d bytes", x.name, got.wc.ID, len(data))
			break
		}
	}
}

// received returns the completion and the contents of x's receive with an ID when it gets o.
func (o *simOp) received(x, peer *program, id uint64) (want verbs.WC, data []byte) {
	want = verbs.WC{ID: id, Op: verbs.WCRecv, ByteLen: uint32(o.length), QPN: x.qp.cfg.QPN, SrcQPN: peer.qp.cfg.QPN}
	data = o.data
	if o.writes() {
		want.Op, data = verbs.WCRecvRDMAWithImm, nil
	}
	switch o.wr.Op {
	case verbs.OpSendWithImm, verbs.OpRDMAWriteWithImm:
		want.Flags, want.Imm = verbs.WCFlagWithImm, o.wr.Imm
	case verbs.OpSendWithInv:
		want.Flags, want.Imm = verbs.WCFlagWithInv, uint32(x.keyOf(o.window))
	}
	if x.qp.cfg.Type == verbs.QPTypeUD {
		want.Flags |= verbs.WCFlagGRH
		want.SL = 8 | 2 // the header of IPv4
		want.ByteLen += verbs.GRHSize
		data = append(testGRH[:len(testGRH):len(testGRH)], data...)
	}
	return want, data
}

// check checks the completions, effects and results of the work requests that x posted toward y. The slices are the
// memories before.
func (s *sim) check(x, y *program, beforeX, beforeY []byte) {
	t := s.t
	failed := s.checkFates(x, y)
	if c := x.qp.Counters(); s.calm && (c.Timeouts != 0 || c.SequenceNAKs != 0 || c.ImpliedNAKs != 0 || c.Duplicates != 0) {
		t.Errorf("%s: on a network without faults: %+v, want no timeouts, NAKs or duplicates", x.name, c)
	}
	s.checkWrites(x, y, beforeY, failed)
	s.checkAtomics(x, y, beforeY, failed)
	s.checkWindows(x, y, failed)

	messages, bytesWritten, atomics, flushes, atomicWrites := 0, uint64(0), uint64(0), uint64(0), uint64(0)
	for _, o := range x.ops[:x.posted] {
		if o.takesRecv() && (o.wr.ID < uint64(failed)) {
			messages++
		}
		if o.writes() {
			bytesWritten += uint64(o.length)
		}
		if o.atomic() {
			atomics++
		}
		flushes += uint64(bit(o.wr.Op == verbs.OpFlush))
		atomicWrites += uint64(bit(o.wr.Op == verbs.OpAtomicWrite))
	}
	received := 0
	for _, r := range y.recvd {
		if r.wc.Status == verbs.WCSuccess {
			received++
		}
	}
	whole, done := failed == len(x.ops), y.qp.Work()
	if received < messages || whole && received != messages {
		t.Errorf("%s received %d messages, want those that were acknowledged to %s, %d, or where it failed more", y.name, received, x.name, messages)
	}
	if done.WriteBytes > bytesWritten || done.Atomics > atomics || whole && (done.WriteBytes != bytesWritten || done.Atomics != atomics) {
		t.Errorf("%s: %d bytes are written and %d atomics executed, want %d and %d, or less where the QP failed: %v", y.name, done.WriteBytes, done.Atomics, bytesWritten, atomics, !whole)
	}
	if done.Flushes > flushes || done.AtomicWrites > atomicWrites || whole && (done.Flushes != flushes || done.AtomicWrites != atomicWrites) {
		t.Errorf("%s: %d FLUSHes and %d ATOMIC WRITEs are executed, want %d and %d, or less where the QP failed: %v", y.name, done.Flushes, done.AtomicWrites, flushes, atomicWrites, !whole)
	}

	s.checkUntouched(x, beforeX)
}

// checkUntouched checks that only such parts of x's own memory have changed as work requests name.
func (s *sim) checkUntouched(x *program, beforeX []byte) {
	expect := clone(x.mem.data)
	copy(expect[simStatic:simWrite], beforeX[simStatic:simWrite])
	copy(expect[simWrite+simWriteLen:simWords], beforeX[simWrite+simWriteLen:simWords])
	copy(expect[simWords+8*simWordCount:simRecv], beforeX[simWords+8*simWordCount:simRecv])
	copy(expect[simRecv+simRecvSlots*simRecvLen:], beforeX[simRecv+simRecvSlots*simRecvLen:])
	for _, o := range x.ops[:x.posted] {
		copy(expect[o.target:][:o.length*bit(o.target > 0)], x.mem.data[o.target:])
	}
	if !bytes.Equal(expect, x.mem.data) {
		s.t.Errorf("%s: memory that no work request names has changed, want it as before", x.name)
	}
}

// checkWindows checks that x's binds and invalidations were executed in order and once: all those before the work
// request that failed, and perhaps some behind it.
func (s *sim) checkWindows(x, y *program, failed int) {
	var bound, local, remote []verbs.RKey
	var least [3]int
	for i, o := range x.ops[:x.posted] {
		if i == failed {
			least = [3]int{len(bound), len(local), len(remote)}
		}
		switch o.wr.Op {
		case verbs.OpBindMW:
			bound = append(bound, o.window)
		case verbs.OpLocalInv:
			local = append(local, o.window)
		case verbs.OpSendWithInv:
			remote = append(remote, o.window)
		}
	}
	if failed == x.posted {
		least = [3]int{len(bound), len(local), len(remote)}
	}
	taken := func(e *node) func(verbs.RKey) bool {
		return func(l verbs.RKey) bool { return e.wasBound(l) && !e.isBound(l) }
	}
	for i, c := range []struct {
		what string
		all  []verbs.RKey // each window is bound once at most, and invalidated once
		done func(verbs.RKey) bool
	}{
		{"bound", bound, x.wasBound}, {"invalidated", local, taken(x.node)}, {"invalidated by the peer", remote, taken(y.node)},
	} {
		n := 0
		for n < len(c.all) && c.done(c.all[n]) {
			n++
		}
		if n < least[i] || slices.ContainsFunc(c.all[n:], c.done) {
			s.t.Errorf("%s: of the windows %v the first %d are %s, want at least %d, and none behind a gap", x.name, c.all, n, c.what, least[i])
		}
	}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// checkFates checks that every work request completed once or, unsignaled, without a completion. It
// returns the index of the first that failed, or how many there are.
func (s *sim) checkFates(x, y *program) int {
	failed := len(x.ops)
	inError := x.qp.State() == verbs.QPStateErr
	if !inError && x.posted != len(x.ops) {
		s.t.Errorf("%s: %d work requests are posted, want %d: it is stuck", x.name, x.posted, len(x.ops))
	}
	for i, o := range x.ops[:x.posted] {
		switch {
		case failed < i:
			if !o.done || o.status != verbs.WCFlushErr {
				s.t.Errorf("%s: work request %d behind the failed %d: done %v, %v; want it flushed", x.name, i, failed, o.done, o.status)
			}
		case !o.done:
			if o.wr.Flags&verbs.SendSignaled != 0 || x.qp.cfg.SignalAll {
				s.t.Fatalf("%s: work request %d is not done, want a completion: %+v", x.name, i, o.wr)
			}
		case o.status != verbs.WCSuccess:
			failed = i
			if !inError {
				s.t.Errorf("%s: %v in %v, want the QP in error", x.name, o.status, x.qp.State())
			}
			if !s.allowed(x, y, o) {
				s.t.Errorf("%s: work request %d: %v, want a status that something caused", x.name, i, o.err)
			}
		case o.wr.Flags&verbs.SendSignaled == 0 && !x.qp.cfg.SignalAll:
			s.t.Errorf("%s: work request %d makes a completion, want none: it is not signaled", x.name, i)
		}
	}
	return min(failed, x.posted)
}

// allowed reports whether o, x's first that failed, may have ended as it has.
func (s *sim) allowed(x, y *program, o *simOp) bool {
	theirs := false // whether the peer made x's responder fail
	for _, p := range y.ops[:y.posted] {
		theirs = theirs || p.bad == verbs.WCRemAccessErr || p.badAt != verbs.WCSuccess
	}
	unreliable := s.faults.loss > 0 || s.faults.reorder > 0
	switch o.status {
	case verbs.WCRetryExceeded: // also when the NAK got lost
		return s.fatal && unreliable || y.qp.State() == verbs.QPStateErr
	case verbs.WCRNRRetryExceeded:
		return s.fatal
	case verbs.WCFlushErr:
		return x.killed || theirs
	}
	return o.status == o.bad
}

// checkWrites applies x's WRITEs to a copy of y's write area, in order. A READ must have got the bytes at its turn,
// or those of a later WRITE. The same holds for the area in the end, to which any part of the WRITEs from the failed
// one on may have been applied.
func (s *sim) checkWrites(x, y *program, before []byte, failed int) {
	img := clone(before)
	var later []*simOp
	fits := func(got []byte, off int, later []*simOp) bool {
		if bytes.Equal(got, img[off:][:len(got)]) {
			return true
		}
	next:
		for i, b := range got {
			if b == img[off+i] {
				continue
			}
			for _, w := range later {
				if k := off + i - w.off; w.writes() && k >= 0 && k < w.length && w.data[k] == b {
					continue next
				}
			}
			return false
		}
		return true
	}
	for i, o := range x.ops[:failed] {
		// A fenced one starts only when the READ is done, and so do those behind it.
		end := i + 1
		for end < x.posted && x.ops[end].wr.Flags&verbs.SendFence == 0 {
			end++
		}
		later = x.ops[i+1 : end]
		switch {
		case o.writes():
			copy(img[o.off:], o.data)
		case o.wr.Op == verbs.OpRDMARead:
			if !fits(x.mem.data[o.target:][:o.length], o.off, later) {
				s.t.Errorf("%s: READ %d of %d bytes got other data, want the bytes of some time", x.name, i, o.length)
			}
		}
	}
	if !fits(y.mem.data[simWrite:][:simWriteLen], simWrite, x.ops[failed:x.posted]) {
		s.t.Errorf("%s: the write area has other contents, want the bytes of the WRITEs", y.name)
	}
}

// checkAtomics executes x's atomics on a copy of y's words, in order. Results must be the same, and so must the words
// in the end. Some atomics from the failed one on may have been executed too.
func (s *sim) checkAtomics(x, y *program, before []byte, failed int) {
	img := clone(before[simWords:][:8*simWordCount])
	end := y.mem.data[simWords:][:8*simWordCount]
	fits := false
	for i, o := range x.ops[:x.posted] {
		if i == failed {
			fits = bytes.Equal(img, end)
		}
		if !o.changesWord() {
			continue
		}
		word := img[o.off-simWords:][:8]
		orig := nativeWord(word)
		if o.wr.Op == verbs.OpAtomicWrite {
			copy(word, o.data)
		} else if o.wr.Op == verbs.OpAtomicFetchAdd {
			binary.NativeEndian.PutUint64(word, orig+o.wr.CompareAdd)
		} else if orig == o.wr.CompareAdd {
			binary.NativeEndian.PutUint64(word, o.wr.Swap)
		}
		if got := nativeWord(x.mem.data[o.target:]); i < failed && o.atomic() && got != orig {
			s.t.Errorf("%s: atomic %d returned %#x, want %#x", x.name, i, got, orig)
		}
		fits = fits || i >= failed && bytes.Equal(img, end)
	}
	if !fits && !bytes.Equal(img, end) {
		s.t.Errorf("%s: the words are %x, want the results of the atomics, %x", y.name, end, img)
	}
}

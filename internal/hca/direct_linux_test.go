//go:build !adverb_portable

package hca

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/shm"
	"github.com/adverb-rdma/adverb/verbs"
)

// directRegion is the size of a region: more than one operation that is carried out directly.
const directRegion = 2 * shm.AccessMost

// directPair connects two ends by lanes. mine is a region of x, and theirs one of y's to which x has access.
func directPair(t testing.TB, o options) (p *lanePair, mine, theirs *verbs.MR) {
	t.Helper()
	p = newLanePair(t, o)
	mine, theirs = p.x.mr(directRegion), p.y.mr(directRegion)
	fill(mine.Bytes(), 1)
	p.gain(writeOf(mine, theirs, 0, 8))
	return p, mine, theirs
}

func writeOf(src, dst *verbs.MR, off, n int) verbs.SendWR {
	return verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.SGE(off, n)}, Remote: dst.Remote(off)}
}

// gain repeats a work request of x until it gets access to its memory.
func (p *lanePair) gain(wr verbs.SendWR) {
	p.x.t.Helper()
	for range askFrom {
		p.usual(wr)
	}
	p.answer()
	p.directly(wr)
}

// usual has x do what y must carry out, and directly what it can carry out itself.
func (p *lanePair) usual(wr verbs.SendWR) verbs.WC    { p.x.t.Helper(); return p.does(wr, 0) }
func (p *lanePair) directly(wr verbs.SendWR) verbs.WC { p.x.t.Helper(); return p.does(wr, 1) }

// succeeds has x carry out work requests that must succeed.
func (p *lanePair) succeeds(wr verbs.SendWR) {
	p.x.t.Helper()
	wc := p.directly(wr)
	p.x.must(wc.Err())
}

func (p *lanePair) does(wr verbs.SendWR, want uint64) verbs.WC {
	p.x.t.Helper()
	before := p.x.impl().traffic.direct
	p.x.send(wr)
	wc := p.next(p.x)
	if got := p.x.impl().traffic.direct - before; got != want {
		p.x.t.Fatalf("%v of %v: %d were carried out directly, want %d", wr.Op, wr.SGList, got, want)
	}
	return wc
}

// TestDirect: what a peer of this host may do with a region it does itself, once it has asked. The owner sends and
// receives nothing.
func TestDirect(t *testing.T) {
	p, mine, theirs := directPair(t, options{})
	before := p.y.impl().traffic
	for _, n := range []int{1, 8, 100, 4096, shm.AccessMost} {
		p.succeeds(writeOf(mine, theirs, 1000, n))
		if !bytes.Equal(mine.Bytes()[1000:1000+n], theirs.Bytes()[1000:1000+n]) {
			t.Errorf("a WRITE of %d bytes has brought others, want the same", n)
		}
		fill(theirs.Bytes(), uint64(n))
		wr := writeOf(mine, theirs, 1000, n)
		wr.Op = verbs.OpRDMARead
		if wc := p.directly(wr); wc.Status != verbs.WCSuccess || wc.Op != verbs.WCRDMARead || wc.ByteLen != uint32(n) {
			t.Errorf("a READ of %d bytes: %+v, want a success of as many", n, wc)
		}
		if !bytes.Equal(mine.Bytes()[1000:1000+n], theirs.Bytes()[1000:1000+n]) {
			t.Errorf("a READ of %d bytes has brought others, want the same", n)
		}
	}
	wr := verbs.SendWR{ID: 77, Op: verbs.OpRDMAWrite, Flags: signaled | verbs.SendInline, InlineData: []byte("inline data"), Remote: theirs.Remote(5)}
	if wc := p.directly(wr); wc.ID != 77 || wc.Op != verbs.WCRDMAWrite || string(theirs.Bytes()[5:16]) != "inline data" {
		t.Errorf("inline data: %+v, and %q arrived, want the WRITE's completion, and those data", wc, theirs.Bytes()[5:16])
	}
	word := func(mr *verbs.MR) uint64 { return binary.NativeEndian.Uint64(mr.Bytes()[512:]) }
	binary.NativeEndian.PutUint64(theirs.Bytes()[512:], 40)
	wr = writeOf(mine, theirs, 512, 8)
	wr.Op, wr.CompareAdd = verbs.OpAtomicFetchAdd, 2
	if wc := p.directly(wr); wc.Op != verbs.WCFetchAdd || wc.ByteLen != 8 || word(mine) != 40 || word(theirs) != 42 {
		t.Errorf("FETCH_ADD of 2 to 40: %+v, was %d, is %d, want its completion, 40 and 42", wc, word(mine), word(theirs))
	}
	wr.Op, wr.CompareAdd, wr.Swap = verbs.OpAtomicCmpSwap, 42, 50
	for _, is := range []uint64{42, 50} {
		if wc := p.directly(wr); wc.Op != verbs.WCCompSwap || word(mine) != is || word(theirs) != 50 {
			t.Errorf("CMP_SWAP of 42 to 50: %+v, was %d, is %d; want %d and 50", wc, word(mine), word(theirs), is)
		}
	}
	if now := p.y.impl().traffic; now != before {
		t.Errorf("the owner's traffic is %+v, want %+v as before", now, before)
	}
	if n := p.x.impl().count("shm_direct_ops"); n != 15 { // one by directPair
		t.Errorf("shm_direct_ops is %d, want 15", n)
	}
}

// TestDirectFile: a region that lies in the middle of a file is reached as one that has a file of its own, and no byte
// beside it.
func TestDirectFile(t *testing.T) {
	const size, at = 1 << 20, 3*4096 + 40
	p := newLanePair(t, options{})
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	p.y.must(err)
	defer unix.Close(fd)
	p.y.must(unix.Ftruncate(fd, size))
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	p.y.must(err)
	program, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	p.y.must(err)
	defer unix.Munmap(program)
	mine := p.x.mr(directRegion)
	fill(mine.Bytes(), 1)
	theirs, err := p.y.pd.RegFileMR(fd, at, directRegion, 0x123456028, everything)
	p.y.must(err)
	p.gain(writeOf(mine, theirs, 0, 8))
	before := p.y.impl().traffic
	p.succeeds(writeOf(mine, theirs, 0, shm.AccessMost))
	p.succeeds(writeOf(mine, theirs, shm.AccessMost, shm.AccessMost))
	if !bytes.Equal(program[at:at+directRegion], mine.Bytes()) {
		t.Error("WRITEs have brought others than their bytes")
	}
	if len(bytes.Trim(program[:at], "\x00"))+len(bytes.Trim(program[at+directRegion:], "\x00")) != 0 {
		t.Error("bytes beside the region have changed")
	}
	wr := writeOf(mine, theirs, 512, 8)
	wr.Op, wr.CompareAdd = verbs.OpAtomicFetchAdd, 2
	binary.NativeEndian.PutUint64(program[at+512:], 40)
	if wc := p.directly(wr); wc.Op != verbs.WCFetchAdd || binary.NativeEndian.Uint64(program[at+512:]) != 42 {
		t.Errorf("FETCH_ADD of 2 to 40: %+v, is %d, want 42", wc, binary.NativeEndian.Uint64(program[at+512:]))
	}
	if now := p.y.impl().traffic; now != before {
		t.Errorf("the owner's traffic is %+v, want %+v as before", now, before)
	}
	p.y.must(theirs.Close())
	if wc := p.usual(writeOf(mine, theirs, 0, 8)); wc.Status != verbs.WCRemAccessErr {
		t.Errorf("a WRITE to a region that is closed: %v, want %v", wc.Status, verbs.WCRemAccessErr)
	}
}

// count returns a counter of the QP.
func (q *qp) count(name string) uint64 {
	cs, _ := q.Counters()
	return cs.Value(name)
}

// TestTryWrite: TryWrite copies memory that nobody has registered, of any length, once the QP has access. It does not wait
// for work requests that are under way, and writes nothing that the owner would refuse.
func TestTryWrite(t *testing.T) {
	p := newLanePair(t, options{untimed: true})
	mine, theirs := p.x.mr(directRegion), p.y.mr(directRegion)
	b := make([]byte, directRegion)
	fill(b, 2)
	for range askFrom {
		if n := p.x.qp.TryWrite(theirs.Remote(0), b); n != 0 {
			t.Fatalf("copied %d bytes without access, want none", n)
		}
	}
	p.answer()
	before := p.y.impl().traffic
	for _, tt := range []struct{ off, n, want int }{
		{0, 0, 0},
		{9, 1, 1},
		{1, shm.AccessMost + 1, shm.AccessMost + 1},
		{0, directRegion, directRegion},
		{directRegion - 8, 16, 0},
		{8, directRegion, shm.AccessMost}, // of the second piece a part is beyond the end
		{-8, 8, 0},
	} {
		clear(theirs.Bytes())
		to := theirs.Remote(0)
		to.VA += uint64(tt.off)
		if n := p.x.qp.TryWrite(to, b[:tt.n]); n != tt.want {
			t.Errorf("copied %d of %d bytes to offset %d, want %d", n, tt.n, tt.off, tt.want)
		}
		want := make([]byte, directRegion)
		if tt.want > 0 {
			copy(want[tt.off:], b[:tt.want])
		}
		if !bytes.Equal(theirs.Bytes(), want) {
			t.Errorf("%d bytes to offset %d: the region has other bytes, want those", tt.n, tt.off)
		}
	}
	if now := p.y.impl().traffic; now != before {
		t.Errorf("the owner's traffic is %+v, want %+v as before", now, before)
	}

	p.x.send(writeOf(mine, theirs, 0, directRegion))
	if n := p.x.qp.TryWrite(theirs.Remote(0), b[:8]); n != 8 || !bytes.Equal(theirs.Bytes()[:8], b[:8]) {
		t.Errorf("copied %d bytes beside a WRITE that is under way, want all 8", n)
	}
	p.want(p.x)

	p.x.must(p.x.qp.Modify(&verbs.QPAttr{State: verbs.QPStateSQD}, verbs.MaskState))
	for range askFrom {
		p.x.qp.TryWrite(theirs.Remote(0), b[:8])
	}
	p.answer()
	if n := p.x.qp.TryWrite(theirs.Remote(0), b[:8]); n != 0 {
		t.Errorf("copied %d bytes in SQD, want none", n)
	}
}

// TestDirectOrder: a work request is not carried out before those that were posted earlier.
func TestDirectOrder(t *testing.T) {
	p, mine, theirs := directPair(t, options{untimed: true})
	long := writeOf(mine, theirs, 0, directRegion) // goes the usual way
	short := writeOf(mine, theirs, 0, 8)
	clear(theirs.Bytes())
	p.x.send(long, short, long)
	if theirs.Bytes()[0] != 0 {
		t.Error("a short WRITE was carried out before the long one that was posted before it")
	}
	for range 3 {
		p.want(p.x)
	}
	// The PSNs of both ends still agree.
	p.succeeds(short)
	p.y.recv(verbs.RecvWR{SGList: []verbs.SGE{theirs.SGE(0, 100)}})
	p.x.send(verbs.SendWR{Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{mine.SGE(0, 100)}})
	p.want(p.y)
	p.want(p.x)
	p.succeeds(short)
	if c := counters(p.x, p.y); c.Retransmits != 0 || c.OutOfOrder != 0 {
		t.Errorf("%d packets were repeated and %d out of order, want none", c.Retransmits, c.OutOfOrder)
	}
}

// TestDirectQueue: unsignaled work requests fill the send queue, and a signaled one frees it, as any do.
func TestDirectQueue(t *testing.T) {
	p, mine, theirs := directPair(t, options{})
	quiet := writeOf(mine, theirs, 0, 8)
	quiet.Flags = 0
	depth := 0
	var err error
	for ; err == nil && depth < 1<<16; depth++ {
		_, err = p.x.qp.PostSend([]verbs.SendWR{quiet})
	}
	if !errors.Is(err, verbs.ErrQueueFull) {
		t.Fatalf("%d unsignaled work requests: %v, want %v", depth, err, verbs.ErrQueueFull)
	}
	p.x.empty()
}

// TestDirectRefused: an operation that the owner refuses goes the usual way, and fails there as ever.
func TestDirectRefused(t *testing.T) {
	readable := func(p *lanePair, mine *verbs.MR) *verbs.MR {
		mr, err := p.y.pd.AllocMR(64<<10, verbs.AccessLocalWrite|verbs.AccessRemoteRead)
		p.x.must(err)
		wr := writeOf(mine, mr, 0, 8)
		wr.Op = verbs.OpRDMARead
		p.gain(wr)
		return mr
	}
	for name, refused := range map[string]func(p *lanePair, mine, theirs *verbs.MR) verbs.SendWR{
		"a WRITE to what may be read": func(p *lanePair, mine, _ *verbs.MR) verbs.SendWR {
			return writeOf(mine, readable(p, mine), 0, 8)
		},
		"a WRITE beyond the end": func(_ *lanePair, mine, theirs *verbs.MR) verbs.SendWR {
			wr := writeOf(mine, theirs, 0, 16)
			wr.Remote = theirs.Remote(directRegion - 8)
			return wr
		},
		"a WRITE before the start": func(_ *lanePair, mine, theirs *verbs.MR) verbs.SendWR {
			wr := writeOf(mine, theirs, 0, 16)
			wr.Remote.VA -= 8
			return wr
		},
		"a READ to memory that may not be changed": func(p *lanePair, mine, theirs *verbs.MR) verbs.SendWR {
			fixed, err := p.x.pd.AllocMR(64, 0)
			p.x.must(err)
			wr := writeOf(mine, theirs, 0, 8)
			wr.Op, wr.SGList = verbs.OpRDMARead, []verbs.SGE{fixed.SGE(0, 8)}
			return wr
		},
		"a READ by a QP that may have none outstanding": func(p *lanePair, mine, theirs *verbs.MR) verbs.SendWR {
			p.x.must(p.x.qp.Modify(&verbs.QPAttr{State: verbs.QPStateSQD}, verbs.MaskState))
			p.x.must(p.x.qp.Modify(&verbs.QPAttr{MaxRDAtomic: 0}, verbs.MaskMaxRDAtomic))
			p.x.must(p.x.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTS}, verbs.MaskState))
			wr := writeOf(mine, theirs, 0, 8)
			p.gain(wr)
			wr.Op = verbs.OpRDMARead
			return wr
		},
		"a READ to another's memory": func(_ *lanePair, mine, theirs *verbs.MR) verbs.SendWR {
			wr := writeOf(mine, theirs, 0, 8)
			wr.Op, wr.SGList = verbs.OpRDMARead, []verbs.SGE{theirs.SGE(0, 8)}
			return wr
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, mine, theirs := directPair(t, options{})
			if wc := p.usual(refused(p, mine, theirs)); wc.Status == verbs.WCSuccess || wc.Status == verbs.WCRetryExceeded {
				t.Errorf("got %v, want a refusal", wc.Status)
			}
		})
	}
}

// TestDirectEnds: access ends with the region, the QP's rights, its failure and its end. What comes then goes the usual
// way, and is refused there, or not even heard. The memory is not mapped any more.
func TestDirectEnds(t *testing.T) {
	for name, end := range map[string]func(p *lanePair, theirs *verbs.MR){
		"the region is closed": func(p *lanePair, theirs *verbs.MR) { p.y.must(theirs.Close()) },
		"the region has another key": func(p *lanePair, theirs *verbs.MR) {
			p.y.must(theirs.Rereg(verbs.ReregAccess, nil, nil, verbs.AccessLocalWrite))
		},
		"the QP allows nothing": func(p *lanePair, _ *verbs.MR) {
			p.y.must(p.y.qp.Modify(&verbs.QPAttr{Access: 0}, verbs.MaskAccessFlags))
		},
		"the QP fails":     func(p *lanePair, _ *verbs.MR) { p.y.impl().Fail(errors.New("a failure")) },
		"the QP is closed": func(p *lanePair, _ *verbs.MR) { p.y.must(p.y.qp.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			p, mine, theirs := directPair(t, options{})
			lane := p.x.impl().lane.out
			end(p, theirs)
			before := p.x.impl().traffic.direct
			p.x.send(writeOf(mine, theirs, 0, 8))
			if n := p.x.qp.TryWrite(theirs.Remote(0), make([]byte, 8)); n != 0 || p.x.impl().traffic.direct != before {
				t.Fatalf("the WRITE was carried out directly, or TryWrite has copied %d bytes; want neither", n)
			}
			if p.y.qp.State() == verbs.QPStateRTS {
				if wc := p.next(p.x); wc.Status == verbs.WCSuccess {
					t.Error("the WRITE succeeds")
				}
			}
			p.answer()
			if n := lane.AccessFiles(); n != 0 {
				t.Errorf("%d regions of the owner's are still mapped, want none", n)
			}
		})
	}
}

// TestDirectReregBeside: what Rereg promises of an initiator that is stuck holds too while another goroutine closes the QP.
func TestDirectReregBeside(t *testing.T) {
	p, _, theirs := directPair(t, options{})
	clear(theirs.Bytes())
	a := p.x.impl().lane.direct.latest.access
	if !a.Begin(0) {
		t.Fatal("no access")
	}
	closed := make(chan error)
	go func() { closed <- p.y.qp.Close() }()
	for q := p.y.impl(); q.mu.TryLock(); runtime.Gosched() { // until Close has it
		q.mu.Unlock()
	}
	p.y.must(theirs.Rereg(verbs.ReregAccess, nil, nil, verbs.AccessLocalWrite))
	if a.Bytes[0] = 77; theirs.Bytes()[0] != 0 {
		t.Error("the initiator has changed the region after Rereg")
	}
	a.End()
	p.y.must(<-closed)
}

// TestDirectDropped: the end of a QP holds for an initiator that has not heard yet that the owner has hung up.
func TestDirectDropped(t *testing.T) {
	p, mine, theirs := directPair(t, options{})
	box := p.inboxes[simAddr(2)]
	for box.Lanes()[0].Leave(); len(box.Lanes()) > 0; runtime.Gosched() {
		p.y.impl().out.eng.poll()
	}
	p.y.must(p.y.qp.Close())
	before := p.x.impl().traffic.direct
	p.x.send(writeOf(mine, theirs, 0, 8))
	if p.x.impl().traffic.direct != before {
		t.Error("a WRITE was carried out directly by a lane that the owner has dropped")
	}
}

// TestDirectAgain: an end that finds nobody at work leaves all as it was before. The region can be granted again, and
// both ends' memory closes.
func TestDirectAgain(t *testing.T) {
	p, mine, theirs := directPair(t, options{})
	wr := writeOf(mine, theirs, 0, 8)
	for what, work := range map[string]func(){
		"a WRITE":  func() { p.succeeds(wr) },
		"TryWrite": func() { p.x.qp.TryWrite(theirs.Remote(0), make([]byte, 8)) },
	} {
		work()
		p.y.must(p.y.qp.Modify(&verbs.QPAttr{MinRNRTimer: 5}, verbs.MaskMinRNRTimer))
		p.answer()
		p.x.impl().lane.direct = nil // as if the key were new
		for range askFrom {
			p.usual(wr)
		}
		p.answer()
		before := p.x.impl().traffic.direct
		if p.x.send(wr); p.x.impl().traffic.direct != before+1 {
			t.Errorf("after %s, and the end of access: the region is not granted again, want it granted", what)
		}
		p.want(p.x)
	}
	closed := make(chan error, 2)
	for _, mr := range []*verbs.MR{mine, theirs} {
		go func() { closed <- mr.Close() }()
		select {
		case err := <-closed:
			p.x.must(err)
		case <-time.After(patience / 10):
			t.Fatalf("Close of a region has not returned after %v, want it to: nothing uses the region", patience/10)
		}
	}
}

// TestDirectInitiatorEnds: an initiator that fails, is closed, or has left the lane gives the owner's memory back.
func TestDirectInitiatorEnds(t *testing.T) {
	for name, end := range map[string]func(p *lanePair, lane *shm.Out){
		"fails":          func(p *lanePair, _ *shm.Out) { p.x.impl().Fail(errors.New("a failure")) },
		"is closed":      func(p *lanePair, _ *shm.Out) { p.x.must(p.x.qp.Close()) },
		"loses its lane": func(_ *lanePair, lane *shm.Out) { lane.Close() },
		"asks in vain":   func(p *lanePair, lane *shm.Out) { p.x.impl().lane.direct.keys[0].later(); p.x.must(p.x.qp.Close()) },
		"is modified": func(p *lanePair, _ *shm.Out) {
			p.x.must(p.x.qp.Modify(&verbs.QPAttr{MinRNRTimer: 5}, verbs.MaskMinRNRTimer))
		},
		"forgets the key": func(p *lanePair, lane *shm.Out) { p.forget(lane) },
	} {
		t.Run(name, func(t *testing.T) {
			p, _, _ := directPair(t, options{})
			lane := p.x.impl().lane.out
			if end(p, lane); lane.AccessFiles() != 0 {
				t.Errorf("%d regions of the owner's are still mapped, want none", lane.AccessFiles())
			}
		})
	}
}

// forget has x use other keys.
func (p *lanePair) forget(lane *shm.Out) {
	q := p.x.impl()
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range uint32(2 * directKeys) {
		q.lane.direct.find(verbs.RKey(i), lane)
	}
}

// TestDirectLate: access that is granted to a QP that has gone on meanwhile is given back.
func TestDirectLate(t *testing.T) {
	p := newLanePair(t, options{})
	mine, theirs := p.x.mr(directRegion), p.y.mr(directRegion)
	for range askFrom {
		p.usual(writeOf(mine, theirs, 0, 8))
	}
	lane := p.x.impl().lane.out
	p.x.must(p.x.qp.Close())
	if n := lane.Users(); n != 0 { // nobody would close it
		t.Errorf("the lane has %d users after its QP was closed, want none", n)
	}
	p.answer()
	if lane.AccessFiles() != 0 {
		t.Errorf("%d regions are mapped for a QP that is closed, want none", lane.AccessFiles())
	}
}

// TestDirectAsks: a key that is refused is asked for less and less often.
func TestDirectAsks(t *testing.T) {
	p := newLanePair(t, options{})
	mine := p.x.mr(directRegion)
	own, err := p.y.pd.RegMR(make([]byte, 4096), everything)
	p.x.must(err)
	asked := 0
	p.onAsk = func() { asked++ }
	for range askFrom*askMore + 2*askFrom {
		p.usual(writeOf(mine, own, 0, 8))
		p.answer()
	}
	if asked != 2 {
		t.Errorf("asked %d times for what cannot be had, want 2", asked)
	}
}

// TestDirectGrants: the owner grants the rights that its QP and the region both allow, to that QP's peer alone.
func TestDirectGrants(t *testing.T) {
	const write, read, atomic = verbs.AccessRemoteWrite, verbs.AccessRemoteRead, verbs.AccessRemoteAtomic
	for _, tt := range []struct {
		name    string
		qp      verbs.Access
		region  verbs.Access
		change  func(p *lanePair, a *shm.Ask)
		from    netip.Addr // of the lane that asks; the zero Addr stands for the peer's
		want    verbs.Access
		noReads bool
		rtr     bool // the QPs stay there
	}{
		{name: "a QP that only answers", region: write, rtr: true, want: write},
		{name: "all", qp: write | read | atomic, region: write | read | atomic, want: write | read | atomic},
		{name: "what the QP allows", qp: write, region: write | read | atomic, want: write},
		{name: "what the region allows", qp: write | read | atomic, region: read, want: read},
		{name: "no READs", qp: write | read | atomic, region: write | read | atomic, noReads: true, want: write},
		{name: "nothing in common", qp: write, region: read},
		{name: "another QP", qp: write, region: write, change: func(_ *lanePair, a *shm.Ask) { a.From++ }},
		{name: "another process", qp: write, region: write, from: simAddr(9)},
		{name: "a QP that has failed", qp: write, region: write, change: func(p *lanePair, _ *shm.Ask) { p.y.impl().Fail(errors.New("a failure")) }},
		{name: "no QP", qp: write, region: write, change: func(_ *lanePair, a *shm.Ask) { a.To++ }},
		{name: "another key", qp: write, region: write, change: func(_ *lanePair, a *shm.Ask) { a.Key += 1 << 8 }},
		{name: "a QP with keys", qp: write, region: write, change: func(p *lanePair, _ *shm.Ask) { p.y.impl().security = new(security) }},
		{name: "a QP that is closed", qp: write, region: write, change: func(p *lanePair, _ *shm.Ask) { p.y.must(p.y.qp.Close()) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newLanePair(t, options{rtr: tt.rtr})
			q := p.y.impl()
			if !tt.rtr {
				p.y.must(p.y.qp.Modify(&verbs.QPAttr{Access: tt.qp}, verbs.MaskAccessFlags))
			}
			if tt.noReads {
				p.y.must(p.y.qp.Modify(&verbs.QPAttr{State: verbs.QPStateSQD}, verbs.MaskState))
				p.y.must(p.y.qp.Modify(&verbs.QPAttr{MaxDestRDAtomic: 0}, verbs.MaskMaxDestRDAtomic))
				p.y.must(p.y.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTS}, verbs.MaskState))
			}
			mr, err := p.y.pd.AllocMR(64<<10, verbs.AccessLocalWrite|tt.region)
			p.y.must(err)
			a := shm.Ask{From: p.x.impl().num, To: q.num, Key: uint32(mr.RKey())}
			if tt.change != nil {
				tt.change(p, &a)
			}
			lane, got := p.x.impl().lane.out, verbs.Access(0)
			if tt.from.IsValid() {
				lane = p.lane(t, tt.from, simAddr(2))
			}
			lane.Ask(a, func(a *shm.Access) bool {
				if got = verbs.Access(a.Rights); a.Write != (got&(write|atomic) != 0) || a.Base != mr.Addr() || len(a.Bytes) != 64<<10 {
					t.Errorf("to be written: %v, %d bytes at %#x; want those of the region", a.Write, len(a.Bytes), a.Base)
				}
				return false
			}, func() {})
			if p.answer(); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
			q.security = nil
		})
	}
}

// TestDirectDetached: memory that is detached while the owner grants access to it, since another initiator is stuck there,
// is not the region's any more. A WRITE goes to the region.
func TestDirectDetached(t *testing.T) {
	p := newLanePair(t, options{})
	mine, theirs := p.x.mr(directRegion), p.y.mr(directRegion)
	fill(mine.Bytes(), 1)
	for range askFrom {
		p.usual(writeOf(mine, theirs, 0, 8))
	}
	p.onSay = func() {
		p.onSay = nil
		s, ok := p.y.impl().pd.Share(theirs.RKey())
		if !ok {
			t.Fatal("the region cannot be shared")
		}
		defer s.Release()
		s.File.Detach(0, 8)
	}
	p.answer()
	clear(theirs.Bytes())
	p.x.send(writeOf(mine, theirs, 0, 8))
	p.want(p.x)
	if !bytes.Equal(theirs.Bytes()[:8], mine.Bytes()[:8]) {
		t.Errorf("the region has %x after the WRITE, want %x", theirs.Bytes()[:8], mine.Bytes()[:8])
	}
}

// TestDirectLies: an owner that grants a right to write, and memory that can only be read, is not believed.
func TestDirectLies(t *testing.T) {
	p := newLanePair(t, options{})
	mine, theirs := p.x.mr(directRegion), p.y.mr(directRegion)
	p.onAnswer = func(g *shm.Granted) { g.Write = false }
	for range askFrom {
		p.usual(writeOf(mine, theirs, 0, 8))
	}
	p.answer()
	wc := p.usual(writeOf(mine, theirs, 0, 8))
	p.x.must(wc.Err())
	wr := writeOf(mine, theirs, 0, 8)
	wr.Op = verbs.OpRDMARead
	p.succeeds(wr)
}

// TestDirectDry: after many work requests that could be carried out if nothing were under way, PostSend lets the QP run
// dry.
func TestDirectDry(t *testing.T) {
	p, mine, theirs := directPair(t, options{driven: true})
	q := p.x.impl()
	before := q.traffic.direct
	long, short := writeOf(mine, theirs, 0, directRegion), writeOf(mine, theirs, 0, 8)
	for row, want := range map[int]uint64{dryFrom - 2: 0, dryFrom - 1: 1} {
		p.x.send(long)
		p.drain(p.y)
		q.lane.direct.row = row
		if p.x.send(short); q.traffic.direct != before+want {
			t.Errorf("after %d in a row: %d were carried out directly, want %d", row, q.traffic.direct-before, want)
		}
		before = q.traffic.direct
		p.want(p.x)
		p.want(p.x)
	}
	// A work request that takes another way begins a new row.
	q.lane.direct.row = dryFrom - 2
	p.x.send(long, short)
	p.drain(p.y)
	if p.x.send(short); q.traffic.direct != before {
		t.Error("the QP ran dry for two in a row")
	}
}

// BenchmarkDirect is a WRITE of 8 bytes and a FETCH_ADD without the owner, and the poll of the completion.
func BenchmarkDirect(b *testing.B) {
	p, mine, theirs := directPair(b, options{})
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpAtomicFetchAdd} {
		b.Run(op.String(), func(b *testing.B) {
			wr := writeOf(mine, theirs, 0, 8)
			wr.Op = op
			wrs := []verbs.SendWR{wr}
			before := p.x.impl().traffic.direct
			n := uint64(0)
			for b.Loop() {
				n++
				if _, err := p.x.qp.PostSend(wrs); err != nil {
					b.Fatal(err)
				}
				if n, err := p.x.cq.Poll(p.wc[:]); n != 1 || err != nil {
					b.Fatal(n, err)
				}
			}
			if got := p.x.impl().traffic.direct - before; got != n {
				b.Errorf("%d of %d were carried out directly, want all", got, n)
			}
		})
	}
}

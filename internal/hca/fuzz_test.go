package hca

import (
	"bytes"
	"context"
	"hash/crc32"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/secure"
	"github.com/adverb-rdma/adverb/internal/tables"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// FuzzReceive gives a device datagrams of any kind, while its program posts, polls and closes its objects.
// Nothing panics or hangs, only memory changes that the sender of the latest datagrams may write, what leaves
// has no byte of memory that nobody may read, each work request completes once, and nothing is left at the
// end. One input always does the same: the clock is simulated, and the device is driven.
func FuzzReceive(f *testing.F) {
	for _, in := range receiveSeeds() {
		f.Add(in)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 2048 {
			return
		}
		runFuzzed(t, in, false)
	})
}

// runFuzzed does what an input says. It returns what has happened. Where it is not thorough, it looks after one
// input in 16 whether the device holds something.
func runFuzzed(t *testing.T, in []byte, thorough bool) (z *fuzzed) {
	synctest.Test(t, func(t *testing.T) {
		z = newFuzzed(t, in)
		z.thorough = thorough
		z.sleep = time.Sleep
		defer func() {
			if t.Failed() { // so that the message is seen, and not that memory is still pinned
				z.hca.Close()
			}
		}()
		for z.steps = 0; len(z.in) > 0; z.steps++ {
			z.step()
			z.check()
		}
		z.end()
	})
	return z
}

// TestReceiveSeeds: the inputs that FuzzReceive begins with reach what they are meant for. And one input
// does the same twice. What fuzzKeeps names is what devices have: a name that no device has any more hides
// nothing, and its successor would fail a fuzzing run, which is rare.
func TestReceiveSeeds(t *testing.T) {
	seen, kept := map[fuzzSeen]int{}, map[string]bool{}
	for _, in := range receiveSeeds() {
		z := runFuzzed(t, in, true)
		first := z.seen
		if again := runFuzzed(t, in, true).seen; !maps.Equal(first, again) {
			t.Errorf("%x does %v, then %v, want the same", in, first, again)
		}
		for s, n := range first {
			seen[s] += n
		}
		for _, path := range z.kept {
			kept[path] = true
		}
	}
	for _, path := range fuzzKeeps {
		if !kept[path] {
			t.Errorf("no seed leaves a device with %s, want fuzzKeeps to name what devices have", path)
		}
	}
	for _, want := range []fuzzSeen{
		{fuzzRC, byte(verbs.WCRecv), succeeded}, {fuzzRC, byte(verbs.WCRecvRDMAWithImm), succeeded}, {fuzzRC, byte(verbs.WCRecv), failed},
		{fuzzUD, byte(verbs.WCRecv), succeeded}, {fuzzGSI, byte(verbs.WCRecv), succeeded},
		{fuzzRC, byte(verbs.WCSend), succeeded}, {fuzzRC, byte(verbs.WCRDMARead), succeeded}, {fuzzRC, byte(verbs.WCFetchAdd), succeeded}, {fuzzRC, byte(verbs.WCBindMW), succeeded},
		{fuzzRC, byte(wire.RCAcknowledge), sent}, {fuzzRC, byte(wire.RCRDMAReadResponseOnly), sent}, {fuzzRC, byte(wire.RCAtomicAcknowledge), sent},
		{fuzzReader, byte(wire.RCRDMAReadResponseOnly), sent}, {fuzzSecured, byte(wire.Secured), sent},
	} {
		if seen[want] == 0 {
			t.Errorf("no seed leads to %+v", want)
		}
	}
}

// The fuzzed QPs.
const (
	fuzzRC      = iota // whose peer has keys for memory, and one of a window
	fuzzReader         // RC, and its peer may only read
	fuzzSecured        // RC whose packets are encrypted
	fuzzUC
	fuzzUD
	fuzzGSI
	fuzzQPCount
)

// The fuzzed memory. Between the areas, and before and behind them, is what nobody may read or write.
const (
	areaOpen      = iota // the RC and the UC QP's peer may do everything
	areaReadable         // it may only read
	areaWindowed         // a window of type 2 is bound to the middle
	areaForeign          // of a PD without QPs
	areaLocked           // of the reader's PD
	areaSecret           // of the secured QP's PD
	areaOwn              // each QP's for what it posts
	fuzzAreaCount = areaOwn + fuzzQPCount
)

const (
	guardSize = 64
	secret    = 0xa7 // fills memory that nobody may read
	untouched = 0xee // fills a receive

	windowAt, windowLen = 128, 256

	// The layout of a QP's own area: receives of two pieces, room for the results of READs, and data to send.
	ownRecvs, recvRoom = 3, 704
	recvHead, recvTail = 48, 600 // the pieces
	recvTailAt         = 64
	ownSinks, sinkRoom = 2, 336
	sinkLen            = 320
	ownSinksAt         = ownRecvs * recvRoom
	ownDataAt          = ownSinksAt + ownSinks*sinkRoom
	ownData            = 256
	ownSize            = ownDataAt + ownData

	fuzzQKey = 0x1234
	peerQPN  = 0x700 // of QP 0's peer; the others' follow
)

var (
	areaSizes  = [areaOwn]int{1024, 256, 512, 256, 256, 512}
	fuzzLocal  = simAddr(1)
	fuzzPeer   = simAddr(2)
	fuzzOther  = simAddr(3) // nobody's peer
	fuzzGroup  = netip.AddrFrom4([4]byte{239, 1, 2, 3})
	fuzzLocal6 = simAddr6(1)
	fuzzPeer6  = simAddr6(2)
)

// fuzzArea is a registered part of the memory.
type fuzzArea struct {
	at, n int
	mr    *verbs.MR // nil once closed
	addr  uint64
	rkey  verbs.RKey
}

// fuzzQP is a QP with its program's knowledge of the QP.
type fuzzQP struct {
	*verbs.QP
	n      int
	closed bool
	own    *fuzzArea
	recvs  [ownRecvs]fuzzSlot
	sinks  [ownSinks]fuzzSlot
	psn    wire.PSN // of the latest request that it sent
	seal   *secure.Sealer
}

// fuzzSlot is the state of memory for a work request.
type fuzzSlot uint8

const (
	slotFree   fuzzSlot = iota
	slotPosted          // it may change
	slotDone            // in the present step, so it may have changed
)

// fuzzWR is a posted work request. Its ID is its place.
type fuzzWR struct {
	q    *fuzzQP
	recv bool
	slot int // of receives, and of what has a sink; -1
	op   verbs.Opcode
	done bool
	gone bool // with RESET or the QP, so that it need not complete
}

// fuzzed is the device, its program, and the rest of the input.
type fuzzed struct {
	t     *testing.T
	whole []byte
	in    []byte // the rest of the input
	sleep func(time.Duration)
	steps int

	hca     *Device
	dev     *verbs.Device
	pds     [4]*verbs.PD // of most, of the reader, of the secured QP, of none
	cq      *verbs.CQ
	qps     [fuzzQPCount]*fuzzQP
	ah      *verbs.AH
	mw      *verbs.MW
	bound   bool // the window may be open
	unbound bool // since the latest check
	binds   int  // the latest bind's work request
	wrs     []fuzzWR

	memory []byte // the areas and the guards
	before []byte // as it was after the latest step
	mask   []byte
	areas  [fuzzAreaCount]fuzzArea

	seen     map[fuzzSeen]int
	thorough bool     // holdsNothing is called in any case
	kept     []string // of fuzzKeeps, what the device had at the end
	arriving map[netip.Addr]*fuzzLink
	may      fuzzMay
	sealed   []byte // the latest genuine packet to the secured QP that has surely arrived
}

// fuzzSeen is something that a QP did: the opcode of a completion, or of a packet that left.
type fuzzSeen struct {
	qp   int
	what byte
	how  fuzzHow
}

type fuzzHow uint8

const (
	succeeded fuzzHow = iota
	failed
	sent
)

// fuzzMay says which QPs a datagram may reach that may not be worked off: its ICRC may pass, and it is from the
// QP's peer or, of datagram QPs, from anybody. To the secured QP it is genuine, and no replay.
type fuzzMay [fuzzQPCount]bool

func (z *fuzzed) must(err error) {
	z.t.Helper()
	if err != nil {
		z.t.Fatalf("step %d: %v", z.steps, err)
	}
}

func must1[T any](z *fuzzed) func(T, error) T {
	return func(v T, err error) T {
		z.t.Helper()
		z.must(err)
		return v
	}
}

// poll takes all completions.
func (z *fuzzed) poll() {
	var wcs [16]verbs.WC
	for {
		n, err := z.cq.Poll(wcs[:])
		z.must(err)
		for i := range wcs[:n] {
			z.completed(&wcs[i])
		}
		if n == 0 {
			return
		}
	}
}

func (z *fuzzed) completed(wc *verbs.WC) {
	if wc.ID >= uint64(len(z.wrs)) {
		z.t.Fatalf("step %d: completion %+v of a work request that was never posted, want one of those posted", z.steps, wc)
	}
	wr := &z.wrs[wc.ID]
	q := wr.q
	if wr.done || wc.QP != q.QP || wc.QPN != q.QPN() || (wc.Op&verbs.WCRecv != 0) != wr.recv {
		z.t.Fatalf("step %d: completion %+v for %+v, want one of its QP, and only one", z.steps, wc, wr)
	}
	wr.done = true
	how := succeeded
	if wc.Status != verbs.WCSuccess {
		how = failed
	}
	z.seen[fuzzSeen{q.n, byte(wc.Op), how}]++
	switch {
	case wr.gone:
	case wr.recv:
		z.received(q, wr.slot, wc)
		q.recvs[wr.slot] = slotDone
		if wc.Flags&verbs.WCFlagWithInv != 0 && verbs.RKey(wc.Imm) == z.mw.RKey() && z.wrs[z.binds].done {
			z.unbound = true
		}
	case wr.slot >= 0:
		q.sinks[wr.slot] = slotDone
	case wr.op == verbs.OpLocalInv && wc.Status == verbs.WCSuccess && int(wc.ID) > z.binds:
		z.unbound = true
	}
}

// received checks that a receive has nothing behind its message. Memory of receives that failed may have
// anything.
func (z *fuzzed) received(q *fuzzQP, slot int, wc *verbs.WC) {
	n := int(wc.ByteLen)
	switch {
	case wc.Status != verbs.WCSuccess:
		return
	case q.n == fuzzUC && wc.Op == verbs.WCRecvRDMAWithImm: // a message that was dropped may have been there before
		return
	case wc.Op == verbs.WCRecvRDMAWithImm:
		n = 0
	case n > recvHead+recvTail || q.Type() == verbs.QPTypeUD && n < verbs.GRHSize:
		z.t.Fatalf("step %d: a message of %d bytes in a receive of %d, want one that fits", z.steps, n, recvHead+recvTail)
	case q.n == fuzzUC:
		return
	}
	for _, p := range recvPieces(q.own, slot) {
		b := z.memory[p[0]:p[1]]
		k := min(n, len(b))
		n -= k
		for i, c := range b[k:] {
			if c != untouched {
				z.t.Fatalf("step %d: byte %d of a receive is %#x, behind a message of %d bytes, want it untouched", z.steps, k+i, c, wc.ByteLen)
			}
		}
	}
}

// check compares the memory with what it was. What may have changed is taken over.
func (z *fuzzed) check() {
	copy(z.mask, z.memory)
	spare := func(from, to int) { copy(z.mask[from:to], z.before[from:to]) }
	area := func(i, at, n int) {
		a := &z.areas[i]
		if a.mr != nil {
			spare(a.at+at, a.at+at+n)
		}
	}
	if z.may[fuzzRC] || z.may[fuzzUC] {
		area(areaOpen, 0, areaSizes[areaOpen])
	}
	if z.may[fuzzRC] && z.bound {
		area(areaWindowed, windowAt, windowLen)
	}
	if z.may[fuzzSecured] {
		area(areaSecret, 0, areaSizes[areaSecret])
	}
	for _, q := range z.made() {
		if q.closed || !z.may[q.n] {
			continue
		}
		for i, state := range q.recvs {
			if state != slotFree {
				for _, p := range recvPieces(q.own, i) {
					spare(p[0], p[1])
				}
			}
		}
		for i, state := range q.sinks {
			if state != slotFree {
				p := sinkPlace(q.own, i)
				spare(p[0], p[1])
			}
		}
	}
	if !bytes.Equal(z.mask, z.before) {
		z.changed()
	}
	copy(z.before, z.memory)
	z.settle()
}

// settle ends a step: its results may not change any more.
func (z *fuzzed) settle() {
	if z.arrived() {
		z.may = fuzzMay{}
	}
	if z.unbound {
		z.bound, z.unbound = false, false
	}
	for _, q := range z.made() {
		for i := range q.recvs {
			if q.recvs[i] == slotDone {
				q.recvs[i] = slotFree
			}
		}
		for i := range q.sinks {
			if q.sinks[i] == slotDone {
				q.sinks[i] = slotFree
			}
		}
	}
}

// changed names memory that has changed and may not have.
func (z *fuzzed) changed() {
	for i := range z.mask {
		if z.mask[i] == z.before[i] {
			continue
		}
		for k := range z.areas {
			if a := &z.areas[k]; i >= a.at-guardSize && i < a.at+a.n+guardSize {
				z.t.Fatalf("step %d: byte %d of area %d, which has %d bytes, was written, want it as it was: what has come may reach the QPs %v", z.steps, i-a.at, k, a.n, z.may)
			}
		}
	}
}

// made are the QPs that were named.
func (z *fuzzed) made() []*fuzzQP {
	return slices.DeleteFunc(slices.Clone(z.qps[:]), func(q *fuzzQP) bool { return q == nil })
}

// close closes a QP.
func (z *fuzzed) close(q *fuzzQP) {
	if q.closed {
		return
	}
	if q.n == fuzzUD {
		z.must(q.DetachMcast(verbs.GIDFromAddr(fuzzGroup)))
	}
	z.must(q.Close())
	q.closed = true
	z.forget(q)
}

// forget takes note that a QP's work requests need not complete any more.
func (z *fuzzed) forget(q *fuzzQP) {
	for i := range z.wrs {
		if wr := &z.wrs[i]; wr.q == q && !wr.done {
			wr.gone = true
		}
	}
}

// fuzzKeeps are what a device has as long as it lives: see internal/whole.
var fuzzKeeps = []string{
	"config.Middleware", "port.state.Addrs", "retired.sum", "Base.Keys.table.opened", "shards", "shards[].qps.opened", "shards[].qps.rested", "shards[].qps.resting",
	"engines", "firstEngines",
}

var past = func() context.Context {
	c, cancel := context.WithCancel(context.Background())
	cancel()
	return c
}()

// end takes all QPs to the error state, which completes everything, and closes all.
func (z *fuzzed) end() {
	z.may = fuzzMay{}
	for _, l := range z.arriving {
		l.arrived = nil
	}
	z.poll()
	for _, q := range z.made() {
		if !q.closed {
			z.must(q.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
		}
	}
	z.hca.Drive(false)
	z.poll()
	for id, wr := range z.wrs {
		if !wr.done && !wr.gone {
			z.t.Fatalf("%+v, with ID %d, of QP %d, never completes, want it to", wr, id, wr.q.n)
		}
	}
	z.check()
	for _, q := range z.made() {
		z.close(q)
	}
	z.must(z.mw.Close())
	for i := range z.areas {
		z.deregister(i)
	}
	z.must(z.ah.Close())
	z.must(z.cq.Close())
	for _, pd := range z.pds {
		z.must(pd.Close())
	}
	z.hca.Drive(false) // closed QPs leave its queues when their turn comes
	for {
		if _, err := z.dev.NextEvent(past); err != nil {
			break
		}
	}
	if z.thorough || crc32.ChecksumIEEE(z.whole)%16 == 0 { // it takes as long as all the rest
		z.holdsNothing()
	}
	z.must(z.dev.Close())
	z.check()
}

func (z *fuzzed) holdsNothing() {
	held := tables.Held(z.hca, []string{"internal/mem"}, []string{"engines[].link"}) // the link is the test's
	for _, path := range fuzzKeeps {
		if held[path] > 0 {
			z.kept = append(z.kept, path)
			delete(held, path)
		}
	}
	if len(held) > 0 {
		z.t.Fatalf("when all is closed the device holds %s, want nothing", tables.String(held))
	}
}

func (z *fuzzed) deregister(i int) {
	if a := &z.areas[i]; a.mr != nil {
		z.must(a.mr.Close())
		a.mr = nil
	}
}

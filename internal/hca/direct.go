package hca

// A WRITE or READ that is not long, or an atomic, to a process of this host may need no packet. The owner of the
// region grants access to the region. The requester, which has the region mapped, carries the operation out itself, as a
// card does: the owner's program and its processor have no part in the operation.
//
//  1. PostSend hands each work request to carryOut. If its key is often used, carryOut asks the owner for access, by the
//     lane's socket.
//  2. The owner's grant checks the QP, the key and the rights, and answers with the region's memfd. The grant ends with
//     the QP's state, the region and the rights: see endDirect, and mem.File.Watch.
//  3. From then on carryOut copies, or adds, unless an earlier work request is still under way. A work request
//     that carryOut cannot carry out, or that would fail, goes the usual way.
//
// Such an operation has no PSN, and the owner does not count it. TryWrite is such a WRITE without a work
// request.

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/shm"
	"github.com/adverb-rdma/adverb/verbs"
)

const (
	// A QP remembers directKeys keys of the peer's.
	directKeys = 16
	// A QP asks for access by a key after askFrom uses. After a refusal, or the end of a grant, it asks again after
	// askMore times as many uses, up to askMost.
	askFrom = 8
	askMore = 8
	askMost = 1 << 20

	// The owner of a WRITE's target may be polling the target. Then the target's cache line takes as long to come as all
	// the rest of a WRITE up to expectMost bytes. So the line is prefetched.
	expectMost = 64

	// A QP that always has something under way is made to run dry, after dryFrom work requests in a row that could
	// be carried out otherwise. The QP waits dryTime at most. If it waits in vain, it tries again after twice as many
	// work requests, up to dryMost.
	dryFrom = 64
	dryMost = 1 << 14
	dryTime = 500 * time.Microsecond
)

// direct is a QP's direct access to the peer's memory, and the peer's to ours.
type direct struct {
	keys   []*directKey
	latest *directKey
	evict  int
	row    int // work requests in a row that could be carried out if nothing were under way
	dry    int // the row after which the QP is made to run dry

	granted map[uint32]granted // by slot
}

// directKey is a key of the peer's.
type directKey struct {
	key    verbs.RKey
	uses   int
	from   int // uses before the QP asks for access
	asked  bool
	access *shm.Access // or nil
}

// granted is access that the peer has.
type granted struct {
	end    func()
	forget func() // the region
}

// carryOut carries a work request out by direct access and completes it, if the QP has access. The caller holds q.mu, and
// pushes the completion.
func (q *qp) carryOut(wr *verbs.SendWR) bool {
	need, n := directNeed(wr)
	if n == 0 || n > shm.AccessMost || need != verbs.AccessRemoteWrite && !q.t.MayRead() {
		if q.lane.direct != nil {
			q.lane.direct.row = 0
		}
		return false
	}
	k, off := q.reach(wr.Remote, n, need)
	if k == nil {
		return false
	}
	a := k.access
	if n <= expectMost && wr.Op == verbs.OpRDMAWrite {
		a.Expect(off)
	}
	if !q.t.IsQuiet() && !q.runDry() || k.access != a {
		return false
	}
	done, err := q.operate(wr, a, off, a.Bytes[off:off+n])
	if !done {
		return false
	}
	q.t.Complete(wr, uint32(n), err)
	if err != nil {
		q.publish()
	}
	q.carriedOut()
	return true
}

// TryWrite implements verbs.ProviderTryWrite. Between pieces the QP can receive.
func (q *qp) TryWrite(to verbs.RemoteAddr, b []byte) (n int) {
	for n < len(b) {
		piece := b[n:min(n+shm.AccessMost, len(b))]
		if !q.tryWrite(to.Add(n), piece) {
			break
		}
		n += len(piece)
	}
	return n
}

// tryWrite is TryWrite of one piece.
func (q *qp) tryWrite(to verbs.RemoteAddr, b []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.lane.out == nil || q.typ != verbs.QPTypeRC || q.State() != verbs.QPStateRTS {
		return false
	}
	n := uint64(len(b))
	k, off := q.reach(to, n, verbs.AccessRemoteWrite)
	if k == nil || !k.access.Begin(off) {
		return false
	}
	err := mem.Foreign(k.access.Bytes[off : off+n]).Place(b)
	k.access.End()
	q.carriedOut()
	return err == nil
}

// reach returns a key with access to n bytes of the peer's memory, and their offset in the region. Without access it
// returns nil, and may ask for access. The caller holds q.mu.
func (q *qp) reach(to verbs.RemoteAddr, n uint64, need verbs.Access) (k *directKey, off uint64) {
	k = q.lane.access().find(to.RKey, q.lane.out)
	a := k.access
	if a == nil {
		q.askFor(k)
		return nil, 0
	}
	off, size := to.VA-a.Base, uint64(len(a.Bytes))
	if verbs.Access(a.Rights)&need == 0 || off > size || n > size-off {
		return nil, 0
	}
	return k, off
}

// carriedOut counts an operation that was carried out by direct access.
func (q *qp) carriedOut() {
	q.traffic.direct++
	if e := q.out.eng; !e.near.direct.Load() {
		e.near.direct.Store(true)
	}
}

// directNeed returns the access that a work request needs, and to how many bytes: 0 if it goes the usual way.
func directNeed(wr *verbs.SendWR) (need verbs.Access, n uint64) {
	switch wr.Op {
	case verbs.OpRDMAWrite:
		if need = verbs.AccessRemoteWrite; wr.InlineData != nil {
			return need, uint64(len(wr.InlineData))
		}
	case verbs.OpRDMARead:
		need = verbs.AccessRemoteRead
	case verbs.OpAtomicCmpSwap, verbs.OpAtomicFetchAdd:
		if len(wr.SGList) != 1 || wr.SGList[0].Length != 8 {
			return 0, 0
		}
		return verbs.AccessRemoteAtomic, 8
	default:
		return 0, 0
	}
	if len(wr.SGList) != 1 {
		return 0, 0
	}
	return need, uint64(wr.SGList[0].Length)
}

// operate carries a work request out on memory of the peer's, which is at an offset of a region. done says whether the
// operation was carried out. With done, err says that its result could not be stored.
func (q *qp) operate(wr *verbs.SendWR, a *shm.Access, off uint64, theirs []byte) (done bool, err error) {
	var ours mem.Span // none for inline data
	if wr.InlineData == nil {
		need := verbs.AccessLocalWrite
		if wr.Op == verbs.OpRDMAWrite {
			need = 0
		}
		if ours, err = q.keeps().requester.OpenSGE(q.pd.PD.PD, &wr.SGList[0], need); err != nil {
			return false, nil
		}
	}
	if a.Begin(off) {
		done, err = operateOn(wr, ours, mem.Foreign(theirs))
		a.End()
	}
	ours.Release()
	return done, err
}

// operateOn is operate for memory that is open. Where ours faults, a WRITE or READ goes the usual way, and fails there. An
// atomic must not be carried out twice.
func operateOn(wr *verbs.SendWR, ours, theirs mem.Span) (done bool, err error) {
	var orig uint64
	switch wr.Op {
	case verbs.OpRDMAWrite:
		if wr.InlineData != nil {
			err = theirs.Place(wr.InlineData)
		} else {
			err = theirs.PlaceFrom(ours)
		}
		return err == nil, nil
	case verbs.OpRDMARead:
		return ours.PlaceFrom(theirs) == nil, nil
	case verbs.OpAtomicCmpSwap:
		orig, err = theirs.CompareSwap(wr.CompareAdd, wr.Swap)
	case verbs.OpAtomicFetchAdd:
		orig, err = theirs.FetchAdd(wr.CompareAdd)
	}
	if err != nil {
		return false, nil
	}
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], orig)
	return true, ours.Place(b[:])
}

// find returns the directKey of a key, and makes one if there is none.
func (d *direct) find(key verbs.RKey, lane *shm.Out) *directKey {
	if k := d.latest; k != nil && k.key == key {
		return k
	}
	for _, k := range d.keys {
		if k.key == key {
			d.latest = k
			return k
		}
	}
	k := &directKey{key: key, from: askFrom}
	if d.latest = k; len(d.keys) < directKeys {
		d.keys = append(d.keys, k)
		return k
	}
	d.evict = (d.evict + 1) % directKeys
	d.keys[d.evict].drop(lane)
	d.keys[d.evict] = k
	return k
}

// drop gives up the access by a key.
func (k *directKey) drop(lane *shm.Out) {
	if k.access != nil {
		lane.Return(k.access)
		k.access = nil
	}
}

// askFor asks the peer for access, if the key is used often.
func (q *qp) askFor(k *directKey) {
	if !k.use() {
		return
	}
	lane := q.lane.out
	k.ask(lane, shm.Ask{From: q.num, To: uint32(q.t.DestQPN()), Key: uint32(k.key)}, func(a *shm.Access) bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.lane.direct == nil || !slices.Contains(q.lane.direct.keys, k) { // q has gone on meanwhile
			return false
		}
		k.granted(a)
		return true
	}, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		k.drop(lane)
		k.later()
	})
}

// use counts a use of the key, and reports whether to ask for access.
func (k *directKey) use() bool {
	k.uses++
	return k.uses >= k.from && !k.asked
}

// ask asks the peer for access. The lane calls granted if the peer grants it, and ended when the peer refuses or ends it.
func (k *directKey) ask(lane *shm.Out, a shm.Ask, granted func(*shm.Access) bool, ended func()) {
	k.uses = 0
	if k.asked = lane.Ask(a, granted, ended); !k.asked {
		k.later()
	}
}

// granted takes over the access that the peer has granted.
func (k *directKey) granted(a *shm.Access) {
	if k.access = a; !a.Write { // whatever the owner says
		a.Rights &= uint32(verbs.AccessRemoteRead)
	}
}

// later has the key be asked for again after more uses.
func (k *directKey) later() {
	k.asked, k.uses, k.from = false, 0, min(k.from*askMore, askMost)
}

// runDry lets the work requests that are under way complete, if many in a row could have been carried out otherwise. It
// reports whether nothing is under way any more. The caller holds q.mu, which runDry unlocks for a time.
func (q *qp) runDry() bool {
	d := q.lane.direct
	if d.row++; d.row < d.dry {
		return false
	}
	d.row = 0
	e := q.out.eng
	start := q.dev.now()
	q.transmit(start)
	for over := false; !over && !q.closed && q.out.eng == e; over = q.dev.now()-start >= dryTime {
		q.mu.Unlock()
		e.poll()
		q.mu.Lock()
		if q.t.IsQuiet() {
			return q.lane.direct == d && q.lane.out != nil
		}
	}
	d.dry = min(2*d.dry, dryMost)
	return false
}

// endDirect ends the peer's access to our memory by the QP, and the QP's access to the peer's. When endDirect returns, the
// peer touches our memory no more.
func (l *lane) endDirect() {
	d := l.direct
	if d == nil {
		return
	}
	l.direct = nil
	for _, k := range d.keys {
		k.drop(l.out)
	}
	for _, g := range d.granted {
		g.end() // before forget: the region's end waits for end too
		g.forget()
	}
}

// answerAsk answers a peer that asks for access by a lane that ends here.
func (e *engine) answerAsk(in *shm.In, a shm.Ask) {
	if q := e.shard.qps.Get(a.To); q == nil || !q.grant(e, in, a) {
		in.Grant(shm.Granted{Slot: a.Slot}) // without rights: a refusal
	}
}

// grant gives the peer the access that its requests would have now, until something changes. It reports whether it has answered.
func (q *qp) grant(e *engine, in *shm.In, a shm.Ask) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.grants(e, in, a) {
		return false
	}
	s, ok := q.pd.Share(verbs.RKey(a.Key))
	if !ok {
		return false
	}
	defer s.Release()
	rights := q.rights() & s.Access
	made := in.Grant(shm.Granted{
		Slot: a.Slot, Rights: uint32(rights), Write: rights&^verbs.AccessRemoteRead != 0,
		Base: s.Base, Len: uint64(len(s.Bytes())), File: fileOf(s.File), Stays: s.File.Stays(),
	})
	if made == nil { // they have no right in common, or the lane has ended
		return true
	}
	end := func() {
		if off, n := made.Revoke(); n > 0 {
			s.File.Detach(off, n)
		}
	}
	q.lane.access().add(a.Slot, granted{end, s.File.Watch(made, made.Revoke)})
	if s.File.Detached() { // before the watch began: the peer would write to the region's former memory
		end()
	}
	return true
}

// access returns the QP's direct access, and makes it at first use.
func (l *lane) access() *direct {
	if l.direct == nil {
		l.direct = &direct{dry: dryFrom}
	}
	return l.direct
}

// add takes note of access that the peer was granted. The peer has returned the access that it had by the same slot.
func (d *direct) add(slot uint32, g granted) {
	if old, ok := d.granted[slot]; ok {
		old.end()
		old.forget()
	}
	if d.granted == nil {
		d.granted = map[uint32]granted{}
	}
	d.granted[slot] = g
}

// grants reports whether q would take requests of the peer that asks. The caller holds q.mu.
func (q *qp) grants(e *engine, in *shm.In, a shm.Ask) bool {
	return !q.closed && q.out.eng == e && q.typ == verbs.QPTypeRC && q.takesRequests() && q.security == nil &&
		in.From() == q.out.dst.Addr().WithZone("") && uint32(q.t.DestQPN()) == a.From
}

// takesRequests reports whether q's responder is at work. A program that only answers may leave its QP in RTR.
func (q *qp) takesRequests() bool {
	s := q.t.State()
	return s == verbs.QPStateRTR || s == verbs.QPStateRTS
}

// rights are the accesses that q's peer may have.
func (q *qp) rights() verbs.Access {
	attr := q.t.Attr()
	rights := attr.Access & (verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic)
	if attr.MaxDestRDAtomic == 0 {
		rights &= verbs.AccessRemoteWrite
	}
	return rights
}

package whole

import (
	"bytes"
	"math/rand/v2"

	"github.com/adverb-rdma/adverb/verbs"
)

// Some regions are registered anew while the peer uses them: to other memory, with other rights, in
// another PD, or with all three changes. The old key, the old range and the old rights end, and the new ones hold; in
// a PD that is not its QP's nobody has any. A region that roams is registered anew when the peer has told that no work
// on the region is under way, so the connection goes on; a victim, in the midst of everything.

const (
	roamSize  = 3 << 10 // the memory in which a region roams
	roamLeast = 256     // bytes of the region
	roamMost  = 1 << 10
)

// roam is a region that an end gives to its peer, now here and now there.
type roam struct {
	e      *end
	r      *region // all of the memory; its MR is for the part that is registered
	off, n int
	access verbs.Access
	key    verbs.RKey
	old    verbs.RKey // the key that the region had before
	uses   int        // the peer's, that are under way
	quiet  bool       // the peer does not use the region now
	away   bool       // the region is in a PD that no QP has
	area   *area
	still  []byte // the contents of the memory when the region was registered
	rnd    *rand.Rand
}

var roamAccess = []verbs.Access{
	verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead, verbs.AccessLocalWrite | verbs.AccessRemoteWrite,
	verbs.AccessRemoteRead,
}

func newRoam(e *end) *roam {
	w := e.n.w
	v := &roam{e: e, rnd: rand.New(rand.NewPCG(w.plan.Seed, uint64(0x40a4+100*e.c.index+10*e.c.life+e.side)))}
	v.r = &region{n: e.n, name: "roaming", whole: make([]byte, guardSize+roamSize+guardSize)}
	fill(v.r.whole[:guardSize], 1)
	fill(v.r.whole[guardSize+roamSize:], 2)
	v.move()
	var err error
	v.r.mr, err = e.n.pd.RegMR(v.part(), v.access|verbs.AccessZeroBased) // addresses of the heap would differ from run to run
	w.must(err)
	v.moved()
	return v
}

func (v *roam) part() []byte { return v.r.bytes()[v.off:][:v.n] }

// move draws where the region is next, with which rights.
func (v *roam) move() {
	v.n = roamLeast + v.rnd.IntN(roamMost-roamLeast+1)
	v.off = v.rnd.IntN(roamSize - v.n + 1)
	v.access = roamAccess[v.rnd.IntN(len(roamAccess))]
}

// moved takes note that the region is registered.
func (v *roam) moved() {
	v.old, v.key = v.key, v.r.mr.RKey()
	v.area, v.still, v.quiet = newArea(v.r, v.off, v.n), bytes.Clone(v.r.bytes()), false
}

func (v *roam) may(a verbs.Access) bool { return !v.away && v.access&a != 0 }

// check checks the memory that nobody may write.
func (v *roam) check() {
	lo, hi := v.off, v.off+v.n
	if !v.may(verbs.AccessRemoteWrite) {
		lo, hi = 0, 0
	}
	b := v.r.bytes()
	if !bytes.Equal(b[:lo], v.still[:lo]) || !bytes.Equal(b[hi:], v.still[hi:]) {
		v.e.n.w.failf("%v: memory was written where the region is no more, or is only for reading: it has bytes %d to %d for %v", v.e, v.off, v.off+v.n, v.access)
	}
	v.r.check()
}

// again registers the region anew, once the peer has said that the region is quiet.
func (v *roam) again() bool {
	if !v.quiet || v.uses > 0 {
		return false
	}
	w := v.e.n.w
	v.check()
	if !bytes.Equal(v.area.bytes(), v.area.want) {
		w.failf("%v: a region has other contents than the WRITEs which are complete make it", v.e)
	}
	off, n, access := v.off, v.n, v.access
	v.move()
	flags := verbs.ReregTranslation | verbs.ReregAccess
	switch v.rnd.IntN(3) {
	case 0:
		v.off, v.n, flags = off, n, verbs.ReregAccess
	case 1:
		v.access, flags = access, verbs.ReregTranslation
	}
	var pd *verbs.PD
	if v.away || v.rnd.IntN(3) == 0 {
		v.away, flags = !v.away, flags|verbs.ReregPD
		if v.rnd.IntN(2) == 0 {
			v.off, v.n, v.access, flags = off, n, access, verbs.ReregPD
		}
		if pd = v.e.n.pd; v.away {
			pd = v.e.n.otherPD
		}
	}
	w.must(v.r.mr.Rereg(flags, pd, v.part(), v.access|verbs.AccessZeroBased))
	v.moved()
	w.totals.Rereg++
	w.logf("%v registers anew: bytes %d to %d for %v, flags %d, away: %v", v.e, v.off, v.off+v.n, v.access, flags, v.away)
	if v.away && v.e.n.otherPD.Close() == nil {
		w.failf("%v: a PD is closed to which a region has moved", v.e)
	}
	return true
}

// verify checks the memory that the peer has written.
func (v *roam) verify(p *end) {
	v.check()
	first := p.done
	if p.status != verbs.WCSuccess {
		first = p.firstBad
	}
	if !v.area.fits(v.area.bytes(), 0, p.ops[min(first, len(p.ops)):]) {
		v.e.n.w.failf("%v: a region has other contents than the WRITEs make it", v.e)
	}
}

// roamOp makes o an op that uses the peer's roaming region, if the region may be used now.
func (e *end) roamOp(o *op) bool {
	r, v := e.rnd, e.peer().roam
	if e.n.w.plan.Illegal && e.bad == nil && (r.IntN(12) == 0 || v.away && r.IntN(3) == 0) {
		if !e.misuse(o, v) {
			return false
		}
		e.bad, e.c.broken = o, true
		e.n.w.totals.Illegal++
		return true
	}
	if v.quiet || v.uses == 0 && r.IntN(4) == 0 {
		v.quiet = true
		return false
	}
	if v.away {
		return false
	}
	o.wr.Op = verbs.OpRDMAWrite
	if !v.may(verbs.AccessRemoteWrite) || v.may(verbs.AccessRemoteRead) && r.IntN(2) == 0 {
		o.wr.Op = verbs.OpRDMARead
	}
	o.length = 1 + r.IntN(v.n)
	o.off = r.IntN(v.n - o.length + 1)
	o.wr.Remote = verbs.RemoteAddr{VA: uint64(o.off), RKey: v.key}
	if !e.memory(o) {
		return false
	}
	o.roam, o.area, o.where = v, v.area, "roaming region"
	v.uses++
	return true
}

// misuse makes o an op that uses the region as o may not, or may no more.
func (e *end) misuse(o *op, v *roam) bool {
	r, key, off := e.rnd, v.key, 0
	o.wr.Op, o.length, o.where = verbs.OpRDMAWrite, 1+r.IntN(roamLeast), "roaming region, against its rights"
	switch k := r.IntN(3); {
	case k == 0 && v.old != 0:
		key, o.where = v.old, "roaming region, by the key before"
	case k == 1:
		off, o.where = v.n-o.length+1, "roaming region, beyond its end"
	case v.away:
		o.where = "roaming region, in another PD"
		if v.access&verbs.AccessRemoteWrite == 0 {
			o.wr.Op = verbs.OpRDMARead
		}
	case !v.may(verbs.AccessRemoteWrite):
	case !v.may(verbs.AccessRemoteRead):
		o.wr.Op = verbs.OpRDMARead
	default:
		return false
	}
	o.wr.Remote, o.expect = verbs.RemoteAddr{VA: uint64(off), RKey: key}, verbs.WCRemAccessErr
	return e.memory(o)
}

// endVictim takes the victim away from the peer: the victim is closed, or registered anew for other memory.
func (e *end) endVictim() {
	w := e.n.w
	e.victimGone = true
	if e.roam == nil || e.roam.rnd.IntN(2) == 0 {
		w.logf("%v closes its victim", e)
		e.victim.close()
	} else {
		w.logf("%v registers its victim anew", e)
		e.victim.other = content(victim, 3)
		w.must(e.victim.mr.Rereg(verbs.ReregTranslation|verbs.ReregAccess, nil, e.victim.other,
			verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessZeroBased))
		w.totals.Rereg++
	}
	e.victim.freeze()
}

// regions are those of the end.
func (e *end) regions() (list []*region) {
	for _, r := range []*region{e.src, e.dst, e.read, e.victim, e.recvs.r} {
		if r != nil {
			list = append(list, r)
		}
	}
	if e.roam != nil {
		list = append(list, e.roam.r)
	}
	return list
}

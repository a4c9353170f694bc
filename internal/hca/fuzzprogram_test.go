package hca

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/secure"
	"github.com/adverb-rdma/adverb/verbs"
)

func newFuzzed(t *testing.T, in []byte) *fuzzed {
	z := &fuzzed{t: t, whole: in, in: in, arriving: map[netip.Addr]*fuzzLink{}, seen: map[fuzzSeen]int{}, binds: -1}
	random := rand.New(rand.NewPCG(1, 2))
	net := sim.New(sim.Config{})
	claimed := false
	z.hca = must1[*Device](z)(Open(net.Netdev("sim1", fuzzLocal, fuzzLocal6), Config{
		Driven: true, Random: random.Uint32, Middleware: []link.Middleware{z.link},
		Ways: Ways{Claim: func(uint32) (bool, error) { // one block of QPNs, since each costs time
			first := !claimed
			claimed = true
			return first, nil
		}},
	}))
	z.dev = verbs.NewDevice(z.hca)
	for i := range z.pds {
		z.pds[i] = must1[*verbs.PD](z)(z.dev.AllocPD())
	}
	z.cq = must1[*verbs.CQ](z)(z.dev.CreateCQ(256))
	z.register()
	z.ah = must1[*verbs.AH](z)(z.pds[0].CreateAH(verbs.AHAttr{DGID: verbs.GIDFromAddr(fuzzPeer)}))
	z.mw = must1[*verbs.MW](z)(z.pds[0].AllocMW(verbs.MWType2))
	return z
}

// fuzzPD is a QP's PD.
func fuzzPD(qp int) int {
	switch qp {
	case fuzzReader:
		return 1
	case fuzzSecured:
		return 2
	}
	return 0
}

// register lays out the memory and registers the areas.
func (z *fuzzed) register() {
	at := guardSize
	for i := range z.areas {
		a := &z.areas[i]
		a.at, a.n = at, ownSize
		if i < areaOwn {
			a.n = areaSizes[i]
		}
		at += a.n + guardSize
	}
	z.memory = make([]byte, at)
	for i := range z.memory {
		z.memory[i] = secret
	}
	access := [areaOwn]verbs.Access{everything, verbs.AccessRemoteRead, verbs.AccessLocalWrite | verbs.AccessMWBind, everything, everything, everything}
	pds := [areaOwn]int{0, 0, 0, 3, 1, 2}
	for i := range areaOwn {
		a := &z.areas[i]
		switch i {
		case areaOpen, areaReadable, areaLocked:
			pattern(z.bytes(a), byte(i))
		case areaWindowed:
			pattern(z.bytes(a)[windowAt:][:windowLen], byte(i))
		}
		z.registerArea(i, pds[i], access[i])
	}
	for i := areaOwn; i < fuzzAreaCount; i++ {
		pattern(z.bytes(&z.areas[i])[ownDataAt:], byte(i))
	}
	z.before, z.mask = bytes.Clone(z.memory), make([]byte, len(z.memory))
}

func (z *fuzzed) registerArea(i, pd int, access verbs.Access) {
	a := &z.areas[i]
	a.addr = uint64(i+1) << 32
	a.mr = must1[*verbs.MR](z)(z.pds[pd].RegMRIOVA(z.bytes(a), a.addr, access))
	a.rkey = a.mr.RKey()
}

// pattern fills b with bytes of which few in a row are the secret.
func pattern(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i) + seed
	}
}

func (z *fuzzed) bytes(a *fuzzArea) []byte { return z.memory[a.at : a.at+a.n] }

// qp returns a QP. It makes it and connects it if it has not been named before.
func (z *fuzzed) qp(n int) *fuzzQP {
	if z.qps[n] == nil {
		z.registerArea(areaOwn+n, fuzzPD(n), verbs.AccessLocalWrite)
		z.open(n)
		if n == fuzzRC {
			z.bind()
		}
	}
	return z.qps[n]
}

func (z *fuzzed) open(n int) {
	q := &fuzzQP{n: n, own: &z.areas[areaOwn+n]}
	attr := verbs.QPInitAttr{Type: verbs.QPTypeRC, SendCQ: z.cq, RecvCQ: z.cq, Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: ownRecvs, MaxSendSGE: 2, MaxRecvSGE: 2}}
	switch n {
	case fuzzUC:
		attr.Type = verbs.QPTypeUC
	case fuzzUD, fuzzGSI:
		attr.Type = verbs.QPTypeUD
	}
	if n == fuzzGSI {
		g := must1[*verbs.GSI](z)(z.dev.GSI())
		q.QP = must1[*verbs.QP](z)(g.CreateQP(z.pds[0], attr))
	} else {
		q.QP = must1[*verbs.QP](z)(z.pds[fuzzPD(n)].CreateQP(attr))
	}
	z.qps[n] = q
	z.connect(q)
	if n == fuzzUD {
		z.must(q.AttachMcast(verbs.GIDFromAddr(fuzzGroup)))
	}
}

// connect takes a QP from RESET to RTS, with two receives.
func (z *fuzzed) connect(q *fuzzQP) {
	q.psn = firstPSN
	q.recvs, q.sinks = [ownRecvs]fuzzSlot{}, [ownSinks]fuzzSlot{}
	switch q.n {
	case fuzzUD, fuzzGSI:
		key := verbs.QKey(fuzzQKey)
		if q.n == fuzzGSI {
			key = verbs.GSIQKey
		}
		z.must(q.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: key}, verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey))
		z.must(q.Modify(&verbs.QPAttr{State: verbs.QPStateRTR}, verbs.MaskState))
	default:
		access := [...]verbs.Access{fuzzRC: everything, fuzzReader: verbs.AccessLocalWrite | verbs.AccessRemoteRead,
			fuzzSecured: everything, fuzzUC: verbs.AccessLocalWrite | verbs.AccessRemoteWrite}[q.n]
		z.must(q.Init(1, access))
		if q.n == fuzzSecured {
			peer := must1[*secure.Exchange](z)(secure.NewExchange())
			key := must1[verbs.SecurityKey](z)(q.NewSecurityKey())
			z.must(q.SetSecurity(verbs.PacketSecurity{Peer: peer.Public()}))
			z.must(peer.Agree(key, nil))
			q.seal, _ = peer.Begin(uint32(peerQPN+q.n), uint32(q.QPN()))
			z.sealed = nil
		}
		z.must(q.RTR(verbs.Peer{QPN: peerQPN + verbs.QPN(q.n), PSN: firstPSN, GID: verbs.GIDFromAddr(fuzzPeer)}, verbs.Path{MTU: verbs.MTU256}))
	}
	retry := verbs.Retry{}
	if q.Type() == verbs.QPTypeRC {
		retry = verbs.Retry{Timeout: 10, RetryCount: 2, RNRRetryCount: 2, MaxRDAtomic: 4}
	}
	z.must(q.RTS(firstPSN, retry))
	z.recv(q)
	z.recv(q)
}

// recv posts a receive, if there is a free slot.
func (z *fuzzed) recv(q *fuzzQP) {
	i := slices.Index(q.recvs[:], slotFree)
	if i < 0 || q.closed {
		return
	}
	at := i * recvRoom
	for _, p := range recvPieces(q.own, i) {
		b := z.memory[p[0]:p[1]]
		for k := range b {
			b[k] = untouched
		}
		copy(z.before[p[0]:p[1]], b)
	}
	z.wrs = append(z.wrs, fuzzWR{q: q, recv: true, slot: i})
	q.recvs[i] = slotPosted
	own := q.own.mr
	_, err := q.PostRecv([]verbs.RecvWR{{ID: uint64(len(z.wrs) - 1), SGList: []verbs.SGE{own.SGE(at, recvHead), own.SGE(at+recvTailAt, recvTail)}}})
	z.must(err)
}

// recvPieces are the places of a receive's pieces in the memory.
func recvPieces(own *fuzzArea, i int) [2][2]int {
	at := own.at + i*recvRoom
	return [2][2]int{{at, at + recvHead}, {at + recvTailAt, at + recvTailAt + recvTail}}
}

func sinkPlace(own *fuzzArea, i int) [2]int {
	at := own.at + ownSinksAt + i*sinkRoom
	return [2]int{at, at + sinkLen}
}

// bind binds the window anew, by a key that follows the one it has.
func (z *fuzzed) bind() {
	a := &z.areas[areaWindowed]
	key := verbs.IncRKey(z.mw.RKey())
	if z.send(z.qp(fuzzRC), verbs.SendWR{Op: verbs.OpBindMW, Bind: &verbs.MWBind{MW: z.mw, RKey: key, MR: a.mr, Addr: a.addr + windowAt, Length: windowLen,
		Access: verbs.AccessRemoteWrite | verbs.AccessRemoteRead}}) {
		z.bound, z.unbound, z.binds = true, false, len(z.wrs)-1
	}
}

// send posts a work request. It reports whether that was taken.
func (z *fuzzed) send(q *fuzzQP, wr verbs.SendWR) bool {
	if q.closed {
		return false
	}
	wr.ID, wr.Flags = uint64(len(z.wrs)), wr.Flags|signaled
	sink := -1
	switch wr.Op {
	case verbs.OpRDMARead, verbs.OpAtomicCmpSwap, verbs.OpAtomicFetchAdd:
		if sink = slices.Index(q.sinks[:], slotFree); sink < 0 {
			return false
		}
		n := sinkLen
		if wr.Op != verbs.OpRDMARead {
			n = 8
		}
		wr.SGList = []verbs.SGE{q.own.mr.SGE(ownSinksAt+sink*sinkRoom, n)}
	}
	n, err := q.PostSend([]verbs.SendWR{wr})
	if n == 0 {
		if !errors.Is(err, verbs.ErrQueueFull) && !errors.Is(err, verbs.ErrUnsupported) && !errors.Is(err, verbs.ErrInvalid) && !errors.Is(err, verbs.ErrState) {
			z.t.Fatalf("step %d: %v is refused: %v, want another error, or none", z.steps, wr.Op, err)
		}
		return false
	}
	if sink >= 0 {
		q.sinks[sink] = slotPosted
	}
	z.wrs = append(z.wrs, fuzzWR{q: q, slot: sink, op: wr.Op})
	return true
}

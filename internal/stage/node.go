package stage

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/adverb-rdma/adverb/internal/clock"
	"github.com/adverb-rdma/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/verbs"
)

// node is a host: its device, and its program with the program's objects.
type node struct {
	s     *Stage
	name  string
	index int
	addr  netip.Addr
	peer  *node
	link  *wireEnd
	free  time.Duration // when the link takes the next packet

	hca *hca.Device
	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ
	qp  *verbs.QP
	gid verbs.GID

	iova    uint64 // of the next region
	ids     uint64 // of work requests
	regions []*region

	pollAt time.Duration // when the program polls next, or never
	done   []Completion  // polled

	manager
	seen
}

// region is registered memory, by its use.
type region struct {
	use    string
	mr     *verbs.MR
	shown  bool   // in the lesson
	before []byte // the content at the latest look
}

// Completion is a CQE that a program has polled.
type Completion struct {
	verbs.WC
	At time.Duration
}

// Uses of regions.
const (
	useSource  = "source"  // A's: SENDs and WRITEs take from it
	useLanding = "landing" // A's: READs and atomics put their results there
	useInbox   = "inbox"   // B's: receives
	useShared  = "shared"  // B's: WRITEs and READs of A
	useCounter = "counter" // B's: atomics of A
)

const (
	counterStart = 37
	inboxSlots   = 2
	pageSize     = 0x1000
)

// open opens the device and registers the memory.
func (n *node) open() (err error) {
	c := hca.Config{
		Name: "lab_" + n.name, Driven: true, Standard: n.s.play.Adverb == 0, Clock: clock.Told(func() time.Duration { return n.s.now }),
		Random: n.s.rng.Uint32, IOVA: func() (uint64, bool) { return n.iova, true },
		Middleware: []link.Middleware{func(l link.Link) link.Link { return l }}, // a device that shows its packets hides no ACK in others
	}
	if n.hca, err = hca.Open(netdev{n}, c); err != nil {
		return err
	}
	n.dev = verbs.NewDevice(n.hca)
	if n.pd, err = n.dev.AllocPD(); err != nil {
		return err
	}
	if n.cq, err = n.dev.CreateCQ(4*n.s.play.Depth + 16); err != nil {
		return err
	}
	e, err := n.dev.GID(1, 0)
	if err != nil {
		return err
	}
	n.gid = e.GID
	size := max(n.s.play.Bytes, 1)
	remote := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	if n == n.s.a {
		return errors.Join(n.register(useSource, size, verbs.AccessLocalWrite, "A"), n.register(useLanding, max(size, 8), verbs.AccessLocalWrite, ""))
	}
	err = errors.Join(n.register(useInbox, inboxSlots*size, verbs.AccessLocalWrite, ""), n.register(useShared, size, remote, ""),
		n.register(useCounter, 8, remote|verbs.AccessRemoteAtomic, ""))
	if err == nil {
		n.region(useCounter).Store64(0, counterStart)
	}
	return err
}

// register registers memory, and fills it with a text that names its owner, if there is one.
func (n *node) register(use string, size int, access verbs.Access, owner string) error {
	mr, err := n.pd.AllocMR(size, access)
	if err != nil {
		return err
	}
	n.iova += pageSize * uint64(1+size/pageSize)
	n.regions = append(n.regions, &region{use: use, mr: mr})
	if owner != "" {
		fill(mr.Bytes(), owner)
	}
	return nil
}

// fill fills memory with rows of 16 bytes of text, each with its number.
func fill(b []byte, owner string) {
	for at := 0; at < len(b); at += 16 {
		copy(b[at:], fmt.Sprintf("%s's row %03d ... ", owner, at/16))
	}
}

func (n *node) region(use string) *verbs.MR {
	for _, r := range n.regions {
		if r.use == use {
			return r.mr
		}
	}
	return nil
}

// show has the lesson show regions.
func (n *node) show(uses ...string) {
	for _, r := range n.regions {
		for _, use := range uses {
			r.shown = r.shown || r.use == use
		}
	}
}

// close closes the device and with it all its objects.
func (n *node) close() error {
	if n.hca == nil {
		return nil
	}
	return n.hca.Close()
}

// createQP makes the QP, in RESET.
func (n *node) createQP() (err error) {
	d := n.s.play.Depth
	n.qp, err = n.pd.CreateQP(verbs.QPInitAttr{SendCQ: n.cq, RecvCQ: n.cq, Cap: verbs.QPCap{MaxSendWR: d, MaxRecvWR: d, MaxSendSGE: 1, MaxRecvSGE: 1}})
	return err
}

func (n *node) toINIT() error {
	return n.qp.Init(1, verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic)
}

// The first PSNs of the two directions. Programs draw them at random; these are easier to follow.
const (
	firstPSNOfA verbs.PSN = 0
	firstPSNOfB verbs.PSN = 1000
)

func (n *node) firstPSN() verbs.PSN {
	if n == n.s.a {
		return firstPSNOfA
	}
	return firstPSNOfB
}

func (n *node) toRTR(peer verbs.Peer) error {
	mtu := verbs.MTU256
	for mtu.Bytes() < n.s.play.MTU {
		mtu++
	}
	return n.qp.RTR(peer, verbs.Path{MTU: mtu, MinRNRTimer: uint8(n.s.play.RNRTimer)})
}

func (n *node) toRTS() error {
	p := &n.s.play
	err := n.qp.RTS(n.firstPSN(), verbs.Retry{Timeout: uint8(p.Timeout), RetryCount: uint8(p.Retry), RNRRetryCount: uint8(p.RNRRetry), MaxRDAtomic: 4})
	if err == nil && p.Adverb != 0 {
		err = n.qp.PeerRepeatsSelectively()
	}
	if err == nil && p.Routing != 0 {
		err = n.qp.SetAdaptiveRouting(verbs.AdaptiveRouting{Send: true, Accept: true})
	}
	return err
}

// connect takes both QPs to RTS, as if the ends had told each other by another network.
func (s *Stage) connect() error {
	for _, n := range s.nodes() {
		if err := errors.Join(n.createQP(), n.toINIT()); err != nil {
			return err
		}
	}
	for _, n := range s.nodes() {
		if err := n.toRTR(verbs.Peer{QPN: n.peer.qp.QPN(), PSN: n.peer.firstPSN(), GID: n.peer.gid}); err != nil {
			return err
		}
	}
	for _, n := range s.nodes() {
		if err := n.toRTS(); err != nil {
			return err
		}
	}
	s.settle()
	return nil
}

// post posts a send work request.
func (n *node) post(wr verbs.SendWR) error {
	if n.qp == nil {
		return errNoQP
	}
	wr.ID = n.ids + 1
	wr.Flags |= verbs.SendSignaled
	length := 0
	for _, sge := range wr.SGList {
		length += int(sge.Length)
	}
	mark := len(n.s.log) // packets leave during the call
	n.s.note(Entry{Kind: "post", Who: n.name, ID: wr.ID, Op: opName(wr.Op), Bytes: length})
	if err := n.qp.PostOneSend(wr); err != nil {
		n.s.log = n.s.log[:mark]
		return err
	}
	n.ids++
	return nil
}

var errNoQP = errors.New("there is no QP yet")

// postReceive posts a receive of so many bytes, into the slots of the inbox in turn.
func (n *node) postReceive(length int) error {
	if n.qp == nil {
		return errNoQP
	}
	inbox := n.region(useInbox)
	id := n.ids + 1
	slot := int(id) % inboxSlots * (inbox.Len() / inboxSlots)
	if err := n.qp.PostOneRecv(id, inbox.SGE(slot, length)); err != nil {
		return err
	}
	n.ids++
	n.show(useInbox)
	n.s.note(Entry{Kind: "receive", Who: n.name, ID: id, Bytes: length})
	return nil
}

// poll takes the oldest completion from the CQ.
func (n *node) poll() {
	n.pollAt = never
	var wc [1]verbs.WC
	if k, err := n.cq.Poll(wc[:]); err != nil || k == 0 {
		return
	}
	n.seen.polled++
	n.done = append(n.done, Completion{wc[0], n.s.now})
	n.s.note(Entry{Kind: "poll", Who: n.name, ID: wc[0].ID, Op: wcName(wc[0].Op), Status: int(wc[0].Status), Bytes: int(wc[0].ByteLen)})
}

// look returns how the QP stands, or the zero value without one.
func (n *node) look() (l hca.Look) {
	if n.qp != nil {
		l, _ = n.hca.LookAt(n.qp.QPN())
	}
	return l
}

// hasRoom reports whether the send queue has room for one more.
func (n *node) hasRoom() bool {
	l := n.look()
	waiting := len(l.Sends)
	for i := range l.SendCQ {
		if l.SendCQ[i].Op&verbs.WCRecv == 0 {
			waiting++
		}
	}
	return waiting < n.s.play.Depth && l.State == verbs.QPStateRTS
}

// cmConfig is that of the host's connection manager. Its secret is from the seed.
func (n *node) cmConfig() cm.Config {
	c := cm.Config{GUID: uint64(n.index)}
	for i := range c.Secret {
		c.Secret[i] = byte(n.s.rng.Uint32())
	}
	return c
}

func opName(op verbs.Opcode) string    { return strings.TrimPrefix(op.String(), "WR_") }
func wcName(op verbs.WCOpcode) string  { return strings.TrimPrefix(op.String(), "WC_") }
func stateName(s verbs.QPState) string { return strings.TrimPrefix(s.String(), "QPS_") }

package whole

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/tables"
	"github.com/adverb-rdma/adverb/verbs"
)

const (
	napTime = 500 * time.Microsecond // of the device, see hca
	qpnRest = 3 * time.Second        // for so long no QPN comes again

	everything = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic | verbs.AccessFlushGlobal
)

// node is a host: a device, and a program that uses it.
type node struct {
	w      *world
	index  int
	addr   netip.Addr
	rnd    *rand.Rand
	life   int             // counts crashes
	forged []link.Datagram // that arrive next
	heard  []link.Datagram // secured ones that have come
	links  []*injector
	holes  []*hole

	netdev  *sim.Netdev
	hca     *hca.Device
	dev     *verbs.Device // nil while the node is down
	paused  bool
	pd      *verbs.PD
	otherPD *verbs.PD // of no QP
	cq      *cqueue   // that some ends share
	queues  []*cqueue // it, and others
	ends    []*end    // open
	byQPN   map[verbs.QPN]*end
	gone    map[verbs.QPN]time.Duration // when QPs were closed, by number
	allocs  []*verbs.MR                 // whose memory must be given back after a crash

	words  *words
	shared *sharedRecvs
	agent  *agent
	ud     *udEnd
	xrc    *xrcHub

	xrcLinks []*xrcLink // from the node

	tickAt  time.Duration // of the program's next turn
	idle    time.Duration // how long the program waits if there is nothing to do
	gathers bool
	napEnd  time.Duration
	ringing ringing                              // whether the completion that was polled rings
	events  [verbs.EventQPLastWQEReached + 1]int // that were seen
}

func (n *node) String() string { return fmt.Sprintf("node%d.%d", n.index, n.life) }

func newNode(w *world, i int) *node {
	n := &node{w: w, index: i, addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)})}
	if w.plan.IPv6 {
		n.addr = netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(1 + i)})
	}
	n.boot()
	return n
}

// boot makes a new device.
func (n *node) boot() {
	w, p := n.w, &n.w.plan
	n.rnd = rand.New(rand.NewPCG(p.Seed, uint64(1000+100*n.index+n.life)))
	n.netdev = w.net.Netdev(fmt.Sprintf("sim%d", n.index), n.addr)
	var err error
	n.hca, err = hca.Open(n.netdev, hca.Config{Driven: true, Middleware: append(w.middleware(), n.inject())})
	w.must(err)
	n.dev = verbs.NewDevice(n.hca)
	n.pd, err = n.dev.AllocPD()
	w.must(err)
	n.otherPD, err = n.dev.AllocPD()
	w.must(err)
	n.queues = nil
	n.cq = newQueue(n, 4096)
	n.ends, n.byQPN, n.gone, n.allocs = nil, map[verbs.QPN]*end{}, map[verbs.QPN]time.Duration{}, nil
	n.links, n.forged, n.heard = n.links[:0:0], nil, nil
	n.words = newWords(n)
	if p.SRQ {
		n.shared = newSharedRecvs(n)
	}
	if p.CM {
		n.agent = newAgent(n)
	}
	if p.UD {
		n.drawUD()
	}
	n.xrcLinks = nil
	if p.XRC {
		n.xrc = newXRCHub(n)
	}
	n.tickAt, n.idle = w.now(), time.Microsecond
	w.logf("%v boots", n)
}

func (n *node) awake() bool { return n.dev != nil && !n.paused }

// turn lets the device do the work that is due, and then the program if its turn has come.
func (n *node) turn() {
	now := n.w.now()
	if !n.gathers || now >= n.napEnd {
		n.gathers = n.w.plan.Gather && n.idle < napTime && n.rnd.IntN(3) > 0
		n.hca.Drive(n.gathers)
		n.napEnd = now + napTime
	}
	if now < n.tickAt && !n.rung() {
		return
	}
	if n.program() {
		n.idle = time.Duration(200 + n.rnd.IntN(20_000))
	} else {
		n.idle = min(2*n.idle, maxIdle)
	}
	n.tickAt = now + n.idle
	if n.agent != nil {
		n.tickAt = min(n.tickAt, max(now, n.agent.machine.NextTimeout()))
	}
}

// rung reports whether a program that waits is to be woken.
func (n *node) rung() bool {
	return n.w.plan.Notify && slices.ContainsFunc(n.queues, func(x *cqueue) bool { return x.bell.waits && x.rung() })
}

// soon has the program look again.
func (n *node) soon() {
	n.idle = time.Microsecond
	n.tickAt = n.w.now()
}

// next returns when the node's next turn is.
func (n *node) next() time.Duration {
	if n.gathers {
		return min(n.tickAt, n.napEnd)
	}
	next := n.tickAt
	if d, ok := n.hca.NextDrive(); ok {
		next = min(next, n.w.now()+d)
	}
	if at, ok := n.w.net.NextDeliveryTo(n.addr); ok {
		next = min(next, at)
	}
	return next
}

// program lets all programs of the node do something. The function reports whether the programs did something.
func (n *node) program() (did bool) {
	did = n.asyncEvents()
	if n.agent != nil {
		did = n.agent.act() || did
	}
	for i := 0; i < len(n.queues); i++ {
		did = n.queues[i].look() || did
	}
	for i := 0; i < len(n.ends); i++ {
		did = n.ends[i].act() || did
	}
	if n.shared != nil {
		did = n.shared.act() || did
	}
	if n.ud != nil {
		did = n.ud.act() || did
	}
	if n.xrc != nil {
		did = n.xrc.act() || did
	}
	for _, l := range n.xrcLinks {
		did = l.act() || did
	}
	return did
}

// completed takes a completion to its owner. The function returns whether the completion rings.
func (n *node) completed(wc *verbs.WC) ringing {
	n.ringing = mayRing
	n.w.totals.Completions++
	e := n.byQPN[wc.QPN]
	n.w.logf("%v: qp %v: %v %d %v, %d bytes", n, wc.QPN, wc.Op, wc.ID, wc.Status, wc.ByteLen)
	switch {
	case n.ud != nil && wc.QPN == n.ud.qp.QPN():
		n.ud.completed(wc)
	case e == nil:
		n.w.failf("%v: a completion of QP %v, which there never was: %+v", n, wc.QPN, wc)
	case e.closed: // the completion was in the CQ
		if wc.Op&verbs.WCRecv != 0 && e.srq {
			n.shared.done(wc.ID)
		}
	case wc.Op&verbs.WCRecv != 0:
		e.recvCompleted(wc)
	default:
		e.sendCompleted(wc)
		n.ringing = silent
	}
	if wc.Status != verbs.WCSuccess {
		return rings
	}
	return n.ringing
}

var past = func() context.Context {
	c, cancel := context.WithCancel(context.Background())
	cancel()
	return c
}()

// asyncEvents takes the asynchronous events.
func (n *node) asyncEvents() (did bool) {
	for {
		ev, err := n.dev.NextEvent(past)
		if err != nil {
			return did
		}
		did = true
		n.w.logf("%v: event %v", n, ev.Type)
		n.events[ev.Type]++
		if ev.CQ != nil {
			n.cqEvent(ev.CQ)
		}
		if ev.QP == nil {
			continue
		}
		if n.ud != nil && ev.QP == n.ud.qp {
			n.ud.event(ev.Type)
		}
		if e := n.byQPN[ev.QP.QPN()]; e != nil && !e.closed {
			e.event(ev.Type)
		}
	}
}

// number checks the number of a new QP.
func (n *node) number(qpn verbs.QPN) {
	if at, ok := n.gone[qpn]; ok && n.w.now()-at < qpnRest {
		n.w.failf("%v: QPN %v is given again %v after its QP was closed, want %v or more", n, qpn, n.w.now()-at, qpnRest)
	}
}

// pause stops the node for a while, as SIGSTOP does.
func (n *node) pause(d time.Duration) {
	if !n.awake() {
		return
	}
	n.w.logf("%v pauses for %v", n, d)
	n.w.totals.Pauses++
	n.paused = true
	life := n.life
	n.w.in(d, func() {
		if n.life == life {
			n.paused = false
			n.soon()
		}
	})
}

// crash ends the node, without a word to anybody. The node comes back after a while.
func (n *node) crash(d time.Duration) {
	if n.dev == nil {
		return
	}
	n.w.logf("%v crashes, for %v", n, d)
	n.w.totals.Crashes++
	for _, e := range n.ends {
		e.closed, e.crashed = true, true
	}
	n.words.crashed()
	n.drop()
	for _, c := range n.w.conns {
		c.crashed(n)
	}
	for _, l := range n.w.xrcLinks {
		l.crashed(n)
	}
	n.life++
	n.w.in(d, n.boot)
}

// drop closes the device with everything that is open.
func (n *node) drop() {
	if n.dev == nil {
		return
	}
	n.countLink()
	n.dev, n.paused, n.gathers = nil, false, false
	n.agent, n.ud, n.shared, n.xrc = nil, nil, nil, nil
	n.hca.Close()
	for _, mr := range n.allocs {
		mr.Close()
	}
}

// countLink adds the counts of the node's link to the totals.
func (n *node) countLink() {
	for _, l := range n.links {
		s := l.Stats()
		n.w.totals.Sent += s.Sent
		n.w.totals.Received += s.Received
	}
}

// flap takes the network interface down for a while.
func (n *node) flap(d time.Duration) {
	if n.dev == nil {
		return
	}
	n.w.logf("%v is off the network for %v", n, d)
	n.w.totals.Flaps++
	dev := n.netdev
	dev.SetUp(false)
	n.w.in(d, func() { dev.SetUp(true) })
}

// keeps are the things that a device has as long as the device lives, all with bounds.
var keeps = []string{
	"config.Middleware", "port.state.Addrs", "retired.sum", // the device's description, and its counts
	"Base.Keys.table.opened", "shards", "shards[].qps.opened", // blocks of numbers
	"shards[].qps.rested", "shards[].qps.resting", // numbers of QPs that were closed of late
	"engines", "firstEngines", // addresses that were used
}

// close closes everything that the node has. Each close must succeed: nobody uses the node any more.
func (n *node) close() {
	w := n.w
	for len(n.ends) > 0 {
		n.ends[0].close()
	}
	if n.agent != nil {
		n.agent.close()
	}
	if n.ud != nil {
		n.ud.close()
	}
	if n.shared != nil {
		n.shared.close()
	}
	if n.xrc != nil {
		n.xrc.close()
	}
	n.words.close()
	n.cq.close()
	w.must(n.pd.Close())
	w.must(n.otherPD.Close())
	n.countLink()
	n.hca.Drive(false) // closed QPs leave its queues when their turn comes
	n.asyncEvents()    // the program has not taken all of the port's
	held := tables.Held(n.hca, []string{"internal/mem"}, nil)
	maps.DeleteFunc(held, func(path string, _ int) bool { return slices.Contains(keeps, path) })
	if len(held) > 0 {
		w.failf("%v: when all is closed the device holds %s", n, tables.String(held))
	}
	w.must(n.dev.Close())
	n.dev = nil
}

// injector is a link that also receives forged datagrams.
type injector struct {
	link.Link
	n *node
}

// inject returns middleware by which a hostile station reaches the node.
func (n *node) inject() link.Middleware {
	return func(l link.Link) link.Link {
		i := &injector{l, n}
		n.links = append(n.links, i)
		return i
	}
}

// Recv implements link.Link.
func (i *injector) Recv(batch []link.Datagram) (int, error) {
	if len(i.n.forged) > 0 && len(batch) > 0 {
		batch[0] = i.n.forged[0]
		i.n.forged = i.n.forged[1:]
		return 1, nil
	}
	for {
		n, err := i.Link.Recv(batch)
		left := i.n.pass(batch[:n])
		if left == 0 && n > 0 {
			continue
		}
		i.n.hear(batch[:left])
		return left, err
	}
}

// Join implements link.Multicaster.
func (i *injector) Join(group netip.Addr) error { return link.Join(i.Link, group) }

// Leave implements link.Multicaster.
func (i *injector) Leave(group netip.Addr) error { return link.Leave(i.Link, group) }

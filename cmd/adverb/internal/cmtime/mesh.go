package cmtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// Steps of the newer form, in the order of its table. The peers send each other the numbers when they
// wait for each other.
const (
	meshFullConnect = iota
	meshCreateID
	meshBind
	meshResolveAddr
	meshResolveRoute
	meshCreateQP
	meshInitAttr
	meshInit
	meshRTRAttr
	meshRTR
	meshRTSAttr
	meshRTS
	meshConnect
	meshEstablish
	meshDisconnect
	meshDestroyID
	meshDestroyQP
	meshSteps
)

var meshStepNames = [meshSteps]string{"full connect", "create id", "bind addr", "resolve addr", "resolve route", "create qp",
	"init qp attr", "init qp", "rtr qp attr", "rtr qp", "rts qp attr", "rts qp", "cm connect", "establish", "disconnect", "destroy id", "destroy qp"}

// meshDisconnectPatience is how long a server waits for its clients to disconnect before it
// disconnects them itself.
const meshDisconnectPatience = 60 * time.Second

// errNeedsQP is the error of -m over iWARP. The last test, which has no QPs, is left out there for this reason.
var errNeedsQP = verbs.Errorf(verbs.ErrUnsupported, "-m: over iWARP a connection belongs to a QP, so there are none without")

// meshConn is a connection of the newer form. One goroutine at a time works on it.
type meshConn struct {
	id           *rdmacm.ID
	qp           *verbs.QP // nil in runs without QPs
	peer         int
	times        [meshSteps]interval
	retries      int
	disconnected bool
}

// meshRun is a run of the newer form.
type meshRun struct {
	inv    *cli.Invocation
	flags  *flags
	ctx    context.Context // ends with the first failure
	cancel context.CancelCauseFunc
	own    netip.Addr
	ch     *rdmacm.EventChannel
	oob    *oob
	peers  []meshPeer
	clock  stopwatch
	work   chan func()

	fake    bool // there are no QPs: their numbers are made up, and delay is the time that they cost
	nextQPN int
	delay   time.Duration

	mu       sync.Mutex // of the fields below
	changed  sync.Cond
	steps    [meshSteps]interval
	done     [meshSteps]int
	conns    []meshConn
	accepted int // connections in use at a server
	left     int // clients that have disconnected
	pd       *verbs.PD
	cq       *verbs.CQ
	iwarp    bool // the device of pd speaks iWARP
}

func runMesh(inv *cli.Invocation, f *flags) int {
	m := &meshRun{inv: inv, flags: f, clock: newStopwatch(), nextQPN: f.baseQPN, delay: f.mimicDelay}
	m.changed.L = &m.mu
	m.ctx, m.cancel = context.WithCancelCause(inv.Ctx)
	return inv.Finish(m.run(), func(err error) int { return inv.ExplainUnlessReported(err, cli.ExitError) })
}

func (m *meshRun) run() error {
	defer m.cancel(nil)
	var err error
	if m.own, err = m.ownAddress(); err != nil {
		return err
	}
	newChannel, done, ok := cm.Open(m.inv, m.flags.device)
	if !ok {
		return cm.Failed(cli.ExitError)
	}
	defer done()
	m.ch = newChannel()
	var listener *rdmacm.ID
	self := meshPeer{}
	if m.flags.listen && !m.flags.sockets {
		if listener, err = m.listen(); err != nil {
			m.inv.Explain(m.ch.Close())
			return err
		}
		self = meshPeer{addr: listener.LocalAddr(), listens: true}
	}
	if m.oob, err = openOOB(m.ctx, m.inv, m.flags.controller, m.flags.port, m.flags.peers); err == nil {
		if m.flags.sockets {
			err = m.runSockets()
		} else {
			err = m.measure(self)
		}
		m.oob.close()
	}
	if listener != nil {
		m.inv.Explain(listener.Close())
	}
	m.inv.Explain(m.ch.Close())
	return err
}

// ownAddress returns the address that -b or -B names.
func (m *meshRun) ownAddress() (netip.Addr, error) {
	if m.flags.netdev == "" {
		a, err := cm.Lookup(m.inv.Ctx, m.flags.bind, false, netip.Addr{})
		if e, ok := errors.AsType[*cm.LookupError](err); ok {
			m.inv.Errorf("rdma_getaddrinfo: %s\n", e.Text())
			m.inv.Explain(err)
			return a, cm.Failed(cli.ExitError)
		}
		return a, err
	}
	ifi, err := net.InterfaceByName(m.flags.netdev)
	if err == nil {
		var addrs []net.Addr
		if addrs, err = ifi.Addrs(); err == nil {
			for _, a := range addrs {
				if p, err := netip.ParsePrefix(a.String()); err == nil {
					m.inv.Printf("Picking source address %v for interface %s\n", p.Addr(), ifi.Name)
					own := p.Addr().Unmap()
					if clib.CheckZone(own) != nil {
						own = own.WithZone(ifi.Name)
					}
					return own, nil
				}
			}
		}
	}
	m.inv.Errorf("Failed to find IP address for interface: %s\n", m.flags.netdev)
	m.inv.Explain(err)
	return netip.Addr{}, cm.Failed(cli.ExitError)
}

func (m *meshRun) listen() (*rdmacm.ID, error) {
	l, err := rdmacm.NewID(m.ch, rdmacm.PortSpaceTCP)
	if err != nil {
		return nil, cm.Perror(m.inv, "rdma_create_id", err)
	}
	if err = l.BindAddr(netip.AddrPortFrom(m.own, 0)); err != nil {
		err = cm.Perror(m.inv, "rdma_bind_addr", err)
	} else if err = l.Listen(0); err != nil {
		err = cm.Perror(m.inv, "rdma_listen", err)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// measure learns of the peers and does the tests.
func (m *meshRun) measure(self meshPeer) error {
	peers, err := m.oob.exchange(self)
	if err != nil {
		return err
	}
	m.peers = peers
	for i := range peers {
		peers[i].addr = peers[i].seenFrom(m.own)
	}
	servers := 0
	for _, p := range peers {
		if p.listens {
			servers++
		}
	}
	switch servers {
	case len(peers):
		return cm.Complain(m.inv, cli.ExitError, nil, "cannot have all listeners")
	case 0:
		return cm.Complain(m.inv, cli.ExitError, nil, "need at least 1 listener")
	}
	perConn, warmUp, verb, role := servers, "Client warmup", "Connect", m.connect
	if m.flags.listen {
		perConn, warmUp, verb, role = len(peers)-servers, "Server warmup", "Accept", m.accept
	}
	total := m.flags.connections * perConn
	if total > cm.MaxConnections {
		return fmt.Errorf("%d connections at this instance: there can be %d", total, cm.MaxConnections)
	}
	stop := m.start(total)
	defer stop()
	m.inv.Printf("%s\n", warmUp)
	if err := m.test(perConn, role); err != nil {
		return err
	}
	m.mu.Lock()
	iwarp := m.iwarp
	m.mu.Unlock()
	if m.flags.mimic && iwarp {
		return errNeedsQP
	}
	if m.flags.mimic {
		m.fake = true
		m.inv.Printf("%s (%d) simulated QPs test (delay %d us)\n", verb, total, m.delay.Microseconds())
	} else {
		m.inv.Printf("%s (%d) QPs test\n", verb, total)
	}
	if err := m.test(total, role); err != nil {
		return err
	}
	m.report()
	if len(peers) != 2 || iwarp {
		return nil
	}
	m.inv.Printf("%s (%d) test - no QPs\n", verb, total)
	m.fake, m.delay = true, 0
	if err := m.test(total, role); err != nil {
		return err
	}
	m.report()
	return nil
}

// enqueue gives work to the goroutines that do it.
func (m *meshRun) enqueue(f func()) {
	select {
	case m.work <- f:
	case <-m.ctx.Done():
	}
}

// start starts the goroutines that handle events and work on connections.
func (m *meshRun) start(connections int) (stop func()) {
	var running sync.WaitGroup
	m.work = make(chan func(), connections)
	for range m.flags.threads {
		running.Go(func() {
			for {
				select {
				case f := <-m.work:
					f()
				case <-m.ctx.Done():
					return
				}
			}
		})
	}
	running.Go(func() {
		for {
			ev, err := m.ch.Next(m.ctx)
			if err != nil {
				return
			}
			m.handle(ev)
		}
	})
	wake := context.AfterFunc(m.ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.changed.Broadcast()
	})
	return func() {
		m.cancel(nil)
		running.Wait()
		wake()
		m.closeConns()
		if m.cq != nil {
			m.inv.Explain(m.cq.Close())
		}
		if m.pd != nil {
			m.inv.Explain(m.pd.Close())
		}
	}
}

// closeConns closes the connections that a failed test has left.
func (m *meshRun) closeConns() {
	for i := range m.conns {
		c := &m.conns[i]
		if c.qp != nil {
			m.inv.Explain(c.qp.Close())
		}
		if c.id != nil {
			m.inv.Explain(c.id.Close())
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conns = nil
}

// fail ends the run with a failure that has been reported.
func (m *meshRun) fail(err error) { m.cancel(err) }

// failed returns the run's failure, or nil.
func (m *meshRun) failed() error {
	if m.ctx.Err() == nil {
		return nil
	}
	return context.Cause(m.ctx)
}

// test makes n new connections.
func (m *meshRun) test(n int, role func() error) error {
	m.closeConns()
	m.mu.Lock()
	m.steps, m.done, m.accepted, m.left = [meshSteps]interval{}, [meshSteps]int{}, 0, 0
	m.conns = make([]meshConn, n)
	if !m.flags.listen { // to each server in turn
		p := 0
		for i := range m.conns {
			for !m.peers[p].listens {
				p = (p + 1) % len(m.peers)
			}
			m.conns[i].peer = p
			p = (p + 1) % len(m.peers)
		}
	}
	m.mu.Unlock()
	if err := m.oob.sync(0); err != nil {
		return err
	}
	return role()
}

// begin and end take the times of a step of all connections.
func (m *meshRun) begin(step int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.steps[step].start = m.clock.now()
}

func (m *meshRun) end(step int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.steps[step].end = m.clock.now()
}

// finished counts a connection that is done with a step. On a server the last one ends the step.
func (m *meshRun) finished(step int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done[step]++
	if m.done[step] < len(m.conns) {
		return
	}
	if m.flags.listen {
		m.steps[step].end = m.clock.now()
	}
	m.changed.Broadcast()
}

// await waits until all connections are done with a step.
func (m *meshRun) await(step int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.done[step] < len(m.conns) && m.ctx.Err() == nil {
		m.changed.Wait()
	}
	return m.failed()
}

// timed runs f as a step of one connection.
func (m *meshRun) timed(c *meshConn, step int, f func() error) error {
	c.times[step].start = m.clock.now()
	err := f()
	c.times[step].end = m.clock.now()
	return err
}

// report prints the table and, if asked for, the rate.
func (m *meshRun) report() {
	m.mu.Lock()
	defer m.mu.Unlock()
	printMeshTimes(m.inv.Stdout, &m.steps, m.conns, m.fake, m.flags.threads)
	if m.flags.rate {
		m.inv.Printf("rate           %10.0f connections/s (cm connect)\n", perSecond(len(m.conns), m.steps[meshConnect]))
	}
}

// printMeshTimes prints the table.
func printMeshTimes(w io.Writer, steps *[meshSteps]interval, conns []meshConn, fake bool, threads int) {
	kind := "qp_conn"
	if fake {
		kind = "cm_conn"
	}
	fmt.Fprintf(w, "%s        %10d\nthreads        %10d\n", kind, len(conns), threads)
	fmt.Fprintf(w, "step             avg/conn  total(us)    us/conn    sum(us)    max(us)    min(us)\n")
	for s, name := range meshStepNames {
		var sum, longest, shortest int64
		some := false
		for i := range conns {
			if ns, ok := conns[i].times[s].took(); ok {
				us := ns / 1e3
				sum, longest = sum+us, max(longest, us)
				if !some || us < shortest {
					some, shortest = true, us
				}
			}
		}
		if s == meshFullConnect {
			sum = 0 // the connections overlap
		}
		total := int64(0)
		if ns, ok := steps[s].took(); ok {
			total = ns / 1e3
		}
		n := int64(len(conns))
		fmt.Fprintf(w, "%-13s  %10d %10d %10d %10d %10d %10d\n", name, total/n, total, sum/n, sum, longest, shortest)
	}
}

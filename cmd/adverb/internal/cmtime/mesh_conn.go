package cmtime

import (
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// connect is a client's part of a test: each step for all connections before the next.
func (m *meshRun) connect() error {
	m.begin(meshFullConnect)
	for _, s := range []struct {
		step int
		line string
		do   func(*meshConn)
		work bool // the worker goroutines do it
	}{
		{meshCreateID, "Creating IDs", m.createID, false},
		{meshBind, "Binding addresses", m.bind, false},
		{meshResolveAddr, "Resolving addresses", m.resolveAddr, true},
		{meshResolveRoute, "Resolving routes", m.resolveRoute, true},
		{meshCreateQP, "Creating QPs", m.createQP, true},
		{meshInit, "Modify QPs to INIT", m.initQP, true},
	} {
		if err := m.forAll(s.step, s.line, s.work, s.do); err != nil {
			return err
		}
	}
	if err := m.oob.sync(meshInit); err != nil {
		return err
	}
	if err := m.forAll(meshConnect, "Connecting", false, m.connectConn); err != nil {
		return err
	}
	m.end(meshFullConnect)
	if err := m.oob.sync(meshConnect); err != nil {
		return err
	}
	if err := m.forAll(meshDisconnect, "Disconnecting", true, m.disconnect); err != nil {
		return err
	}
	if err := m.oob.sync(meshDisconnect); err != nil {
		return err
	}
	m.inv.Printf("\tDestroying QPs\n")
	m.destroyQueuePairs()
	m.inv.Printf("\tDestroying IDs\n")
	m.destroyIDs()
	return m.failed()
}

// forAll does a step for all connections, and waits until all are done. If work, then the workers do
// it.
func (m *meshRun) forAll(step int, line string, work bool, do func(*meshConn)) error {
	m.inv.Printf("\t%s\n", line)
	m.begin(step)
	for i := range m.conns {
		c := &m.conns[i]
		if work {
			m.enqueue(func() { do(c) })
		} else if do(c); m.ctx.Err() != nil {
			break
		}
	}
	err := m.await(step)
	m.end(step)
	return err
}

// accept is a server's part of a test, which events drive.
func (m *meshRun) accept() error {
	if err := m.oob.sync(meshInit); err != nil {
		return err
	}
	if err := m.await(meshConnect); err != nil {
		return err
	}
	if err := m.oob.sync(meshConnect); err != nil {
		return err
	}
	patience := time.AfterFunc(meshDisconnectPatience, m.disconnectRest)
	err := m.await(meshDisconnect)
	patience.Stop()
	if err != nil {
		return err
	}
	if err := m.oob.sync(meshDisconnect); err != nil {
		return err
	}
	m.destroyQueuePairs()
	m.destroyIDs()
	return m.failed()
}

// handle is called with each event, by one goroutine.
func (m *meshRun) handle(ev rdmacm.Event) {
	c, _ := ev.ID.Context.(*meshConn)
	if c == nil && ev.Type != rdmacm.EventConnectRequest {
		return
	}
	switch ev.Type {
	case rdmacm.EventAddrResolved:
		c.times[meshResolveAddr].end = m.clock.now()
		m.finished(meshResolveAddr)
	case rdmacm.EventRouteResolved:
		c.times[meshResolveRoute].end = m.clock.now()
		m.finished(meshResolveRoute)
	case rdmacm.EventConnectRequest:
		m.requested(ev.ID)
	case rdmacm.EventConnectResponse:
		m.enqueue(func() { m.responded(c) })
	case rdmacm.EventEstablished:
		if m.flags.listen {
			m.finished(meshConnect)
		} else if isIWARP(c.id.Device()) { // there is no EventConnectResponse before
			m.connected(c)
		}
	case rdmacm.EventAddrError:
		if c.retries--; c.retries >= 0 && c.id.ResolveAddr(netip.AddrPort{}, m.peers[c.peer].addr) == nil {
			return
		}
		m.fail(cm.Complain(m.inv, cli.ExitError, ev.Err, "%v, error: %d", ev.Type, ev.Status))
	case rdmacm.EventRouteError:
		if c.retries--; c.retries >= 0 && c.id.ResolveRoute() == nil {
			return
		}
		m.fail(cm.Complain(m.inv, cli.ExitError, ev.Err, "%v, error: %d", ev.Type, ev.Status))
	case rdmacm.EventConnectError, rdmacm.EventUnreachable, rdmacm.EventRejected:
		m.fail(cm.Complain(m.inv, cli.ExitError, ev.Err, "event: %v, error: %d", ev.Type, ev.Status))
	case rdmacm.EventDisconnected:
		if m.flags.listen { // a client does not wait for this
			m.peerLeft(c)
		}
	case rdmacm.EventTimewaitExit:
	default:
		m.fail(cm.Complain(m.inv, cli.ExitError, ev.Err, "Unhandled event: %d (%v)", ev.Type, ev.Type))
	}
}

// requested takes a connection request: it becomes the next connection.
func (m *meshRun) requested(id *rdmacm.ID) {
	m.mu.Lock()
	if m.accepted == len(m.conns) {
		m.mu.Unlock()
		m.inv.Explain(cm.ErrTooMany)
		m.inv.Explain(id.Reject(nil))
		m.inv.Explain(id.Close())
		return
	}
	c := &m.conns[m.accepted]
	m.accepted++
	first := m.accepted == 1
	c.id, id.Context = id, c
	m.mu.Unlock()
	if first {
		m.inv.Printf("\tAccepting\n")
		m.begin(meshConnect)
	}
	m.enqueue(func() {
		m.createQP(c)
		m.modifyQP(c, verbs.QPStateInit, meshInitAttr)
		if !isIWARP(id.Device()) { // there the connection takes the QP to RTS
			m.modifyQP(c, verbs.QPStateRTR, meshRTRAttr)
			m.modifyQP(c, verbs.QPStateRTS, meshRTSAttr)
		}
		if m.ctx.Err() != nil {
			return
		}
		param := m.param(c)
		if err := id.Accept(&param); err != nil {
			m.fail(cm.Perror(m.inv, "failure accepting", err))
		}
	})
}

func (m *meshRun) createID(c *meshConn) {
	c.times[meshFullConnect].start = m.clock.now()
	err := m.timed(c, meshCreateID, func() (err error) {
		c.id, err = rdmacm.NewID(m.ch, rdmacm.PortSpaceTCP)
		return err
	})
	if err != nil {
		m.fail(cm.Perror(m.inv, "rdma_create_id", err))
		return
	}
	c.id.Context = c
	m.finished(meshCreateID)
}

func (m *meshRun) bind(c *meshConn) {
	if err := m.timed(c, meshBind, func() error { return c.id.BindAddr(netip.AddrPortFrom(m.own, 0)) }); err != nil {
		m.fail(cm.Perror(m.inv, "rdma_bind_addr", err))
		return
	}
	m.finished(meshBind)
}

func (m *meshRun) resolveAddr(c *meshConn) {
	c.retries = m.flags.retries
	c.times[meshResolveAddr].start = m.clock.now()
	if err := c.id.ResolveAddr(netip.AddrPort{}, m.peers[c.peer].addr); err != nil {
		m.fail(cm.Perror(m.inv, "rdma_resolve_addr", err))
	}
}

func (m *meshRun) resolveRoute(c *meshConn) {
	c.retries = m.flags.retries
	c.times[meshResolveRoute].start = m.clock.now()
	if err := c.id.ResolveRoute(); err != nil {
		m.fail(cm.Perror(m.inv, "rdma_resolve_route", err))
	}
}

// createQP makes a connection's QP, in the PD and with the CQ that all share.
func (m *meshRun) createQP(c *meshConn) {
	pd, cq, err := m.resources(c.id.Device())
	if err != nil {
		m.fail(err)
		return
	}
	attr := qpAttr
	attr.SendCQ, attr.RecvCQ, attr.SignalAll = cq, cq, true
	err = m.timed(c, meshCreateQP, func() (err error) {
		if m.fake {
			m.pause()
			return nil
		}
		c.qp, err = pd.CreateQP(attr)
		return err
	})
	if err != nil {
		m.fail(cm.Perror(m.inv, "ibv_create_qp", err))
		return
	}
	m.finished(meshCreateQP)
}

// resources returns the PD and the CQ. The first call makes them.
func (m *meshRun) resources(dev *verbs.Device) (*verbs.PD, *verbs.CQ, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cq != nil {
		return m.pd, m.cq, nil
	}
	m.inv.Printf("\tAllocating verbs resources\n")
	m.iwarp = isIWARP(dev)
	var err error
	if m.pd == nil {
		if m.pd, err = dev.AllocPD(); err != nil {
			return nil, nil, cm.Perror(m.inv, "ibv_alloc_pd", err)
		}
	}
	if m.cq, err = dev.CreateCQ(1); err != nil {
		return nil, nil, cm.Perror(m.inv, "ibv_create_cq", err)
	}
	return m.pd, m.cq, nil
}

// pause takes the time that a QP would cost.
func (m *meshRun) pause() {
	if m.delay > 0 {
		time.Sleep(m.delay)
	}
}

func (m *meshRun) initQP(c *meshConn) { m.modifyQP(c, verbs.QPStateInit, meshInitAttr) }

// modifyQP takes a connection's QP to a state. The step attr gets the attributes, and the step behind
// it modifies the QP.
func (m *meshRun) modifyQP(c *meshConn, to verbs.QPState, attr int) {
	if m.ctx.Err() != nil {
		return
	}
	var a verbs.QPAttr
	var mask verbs.QPAttrMask
	err := m.timed(c, attr, func() (err error) {
		a, mask, err = c.id.QPAttr(to)
		return err
	})
	if err != nil {
		m.fail(cm.Perror(m.inv, "rdma_init_qp_attr", err))
		return
	}
	err = m.timed(c, attr+1, func() error {
		if c.qp == nil {
			m.pause()
			return nil
		}
		return c.qp.Modify(&a, mask)
	})
	if err != nil {
		m.fail(cm.Perror(m.inv, "ibv_modify_qp", err))
		return
	}
	m.finished(attr + 1)
}

// param names the connection's QP, or a QP that does not exist in runs without QPs.
func (m *meshRun) param(c *meshConn) rdmacm.ConnParam {
	p := rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1}
	if c.qp != nil {
		p.QPN = c.qp.QPN()
		return p
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	p.QPN = verbs.QPN(m.nextQPN & 0xffffff)
	m.nextQPN++
	return p
}

func (m *meshRun) connectConn(c *meshConn) {
	param := m.param(c)
	c.times[meshConnect].start = m.clock.now()
	if err := c.id.Connect(&param); err != nil {
		m.fail(cm.Perror(m.inv, "rdma_connect", err))
	}
}

// responded takes a client's QP to RTS when the server has accepted.
func (m *meshRun) responded(c *meshConn) {
	m.modifyQP(c, verbs.QPStateRTR, meshRTRAttr)
	m.modifyQP(c, verbs.QPStateRTS, meshRTSAttr)
	if m.ctx.Err() != nil {
		return
	}
	if err := m.timed(c, meshEstablish, c.id.Establish); err != nil {
		m.fail(cm.Perror(m.inv, "rdma_establish", err))
		return
	}
	m.connected(c)
}

// connected ends the making of a client's connection.
func (m *meshRun) connected(c *meshConn) {
	c.times[meshConnect].end = m.clock.now()
	c.times[meshFullConnect].end = c.times[meshConnect].end
	m.finished(meshConnect)
}

// peerLeft answers a client that disconnects.
func (m *meshRun) peerLeft(c *meshConn) {
	m.mu.Lock()
	m.left++
	first := m.left == 1
	m.mu.Unlock()
	if first {
		m.inv.Printf("\tDisconnecting\n")
		m.begin(meshDisconnect)
	}
	m.enqueue(func() { m.disconnect(c) })
}

func (m *meshRun) disconnect(c *meshConn) {
	m.mu.Lock()
	alreadyDone := c.disconnected
	c.disconnected = true
	m.mu.Unlock()
	if alreadyDone {
		return
	}
	_ = m.timed(c, meshDisconnect, c.id.Disconnect) // fails if the peer was first
	m.finished(meshDisconnect)
}

// disconnectRest disconnects the connections whose clients have not done so.
func (m *meshRun) disconnectRest() {
	m.mu.Lock()
	var rest []*meshConn
	for i := range m.conns {
		if c := &m.conns[i]; !c.disconnected && c.id != nil {
			rest = append(rest, c)
		}
	}
	m.inv.Errorf("Timeout waiting for clients to disconnect (got %d/%d)\n", m.done[meshDisconnect], len(m.conns))
	m.mu.Unlock()
	for _, c := range rest {
		m.enqueue(func() { m.disconnect(c) })
	}
}

func (m *meshRun) destroyQueuePairs() {
	m.begin(meshDestroyQP)
	for i := range m.conns {
		c := &m.conns[i]
		err := m.timed(c, meshDestroyQP, func() error {
			if c.qp == nil {
				return nil
			}
			return c.qp.Close()
		})
		c.qp = nil
		m.inv.Explain(err)
	}
	m.end(meshDestroyQP)
}

func (m *meshRun) destroyIDs() {
	m.begin(meshDestroyID)
	for i := range m.conns {
		c := &m.conns[i]
		m.inv.Explain(m.timed(c, meshDestroyID, c.id.Close))
		c.id = nil
	}
	m.end(meshDestroyID)
}

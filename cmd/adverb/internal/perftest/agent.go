package perftest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

const (
	// A server of the C program listens for the QPs of the test a little after it has told its
	// client to connect. So a client tries again.
	connectTries = 50
	connectPause = 100 * time.Millisecond

	endEvents = 16 // of one ID that may wait: an ID has a handful in its life
)

// agent makes connections by the connection manager, for the exchange and for the QPs of the test.
type agent struct {
	ctx      context.Context
	ch       *rdmacm.EventChannel
	security *rdmacm.Security  // of the agent that connects QPs; or nil
	requests chan rdmacm.Event // a client may ask for all its QPs at once
	stop     context.CancelFunc
	done     chan struct{}
}

// cmEnd is one end of a connection.
type cmEnd struct {
	id     *rdmacm.ID
	events chan rdmacm.Event
	lost   func(error) // called when the peer has disconnected, or nil
	gone   chan struct{}
}

func newCMEnd(id *rdmacm.ID) *cmEnd {
	e := &cmEnd{id: id, events: make(chan rdmacm.Event, endEvents), gone: make(chan struct{})}
	id.Context = e
	return e
}

// newAgent makes an agent whose connections are of dev or, if it is nil, of any device.
func newAgent(ctx context.Context, dev *verbs.Device, security *rdmacm.Security) *agent {
	ctx, stop := context.WithCancel(ctx)
	a := &agent{ctx: ctx, security: security, requests: make(chan rdmacm.Event, maxNumQP), stop: stop, done: make(chan struct{})}
	if dev != nil {
		a.ch = rdmacm.NewEventChannel(dev)
	} else {
		a.ch = rdmacm.NewEventChannel()
	}
	go a.route()
	return a
}

// route gives each event to the end that it is for.
func (a *agent) route() {
	defer close(a.done)
	for {
		ev, err := a.ch.Next(a.ctx)
		if err != nil {
			return
		}
		if ev.Type == rdmacm.EventConnectRequest {
			newCMEnd(ev.ID)
			select {
			case a.requests <- ev:
			case <-a.ctx.Done():
				ev.ID.Close()
			}
			continue
		}
		e, ok := ev.ID.Context.(*cmEnd)
		if !ok {
			continue
		}
		if ev.Type == rdmacm.EventDisconnected || ev.Type == rdmacm.EventDeviceRemoval {
			select {
			case <-e.gone:
			default:
				close(e.gone)
			}
			if e.lost != nil {
				time.AfterFunc(mourning, func() { e.lost(errPeerGone) })
			}
		}
		select {
		case e.events <- ev:
		default: // the test does not look at events any more
		}
	}
}

func (a *agent) close() error {
	a.stop()
	<-a.done
	return a.ch.Close()
}

// next waits for an event of an end.
func (a *agent) next(e *cmEnd) (rdmacm.Event, error) {
	select {
	case ev := <-e.events:
		return ev, nil
	case <-a.ctx.Done():
		return rdmacm.Event{}, a.ctx.Err()
	}
}

// expect waits for an event that must be of the type.
func (a *agent) expect(e *cmEnd, want rdmacm.EventType) (rdmacm.Event, error) {
	ev, err := a.next(e)
	switch {
	case err != nil:
		return ev, err
	case ev.Type == want:
		return ev, nil
	case ev.Err != nil:
		return ev, ev.Err
	}
	return ev, fmt.Errorf("%v came, not %v", ev.Type, want)
}

// listen listens for connections of a port space.
func (a *agent) listen(space rdmacm.PortSpace, at netip.AddrPort) (*rdmacm.ID, error) {
	l, err := rdmacm.NewID(a.ch, space)
	if err != nil {
		return nil, err
	}
	if err = l.BindAddr(at); err == nil {
		if err = l.SetSecurity(a.security); err == nil {
			err = l.Listen(0)
		}
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// accept waits for a request of the port space, gives it a QP by setup, and accepts it.
func (a *agent) accept(space rdmacm.PortSpace, p *rdmacm.ConnParam, setup func(*rdmacm.ID) error) (*cmEnd, error) {
	for {
		var ev rdmacm.Event
		select {
		case ev = <-a.requests:
		case <-a.ctx.Done():
			return nil, a.ctx.Err()
		}
		e := ev.ID.Context.(*cmEnd)
		if ev.ID.PortSpace() != space { // of somebody else
			if err := errors.Join(e.id.Reject(nil), e.id.Close()); err != nil {
				return nil, err
			}
			continue
		}
		param := *p
		param.ResponderResources = min(param.ResponderResources, ev.Param.ResponderResources)
		param.InitiatorDepth = min(param.InitiatorDepth, ev.Param.InitiatorDepth)
		err := setup(e.id)
		if err == nil {
			err = e.id.Accept(&param)
		}
		if err == nil && space != rdmacm.PortSpaceUDP { // where nothing follows
			_, err = a.expect(e, rdmacm.EventEstablished)
		}
		if err != nil {
			return nil, errors.Join(err, e.id.Close())
		}
		return e, nil
	}
}

// connect connects to a server. tries is how often.
func (a *agent) connect(space rdmacm.PortSpace, src, dst netip.AddrPort, tos, tries int, p *rdmacm.ConnParam, setup func(*rdmacm.ID) error) (*cmEnd, rdmacm.Event, error) {
	for {
		e, ev, err := a.tryConnect(space, src, dst, tos, p, setup)
		tries--
		if err == nil || tries <= 0 || !errors.Is(err, rdmacm.ErrRefused) || errors.Is(err, rdmacm.ErrSecurity) {
			return e, ev, err
		}
		t := time.NewTimer(connectPause)
		select {
		case <-t.C:
		case <-a.ctx.Done():
			t.Stop()
			return nil, ev, a.ctx.Err()
		}
	}
}

func (a *agent) tryConnect(space rdmacm.PortSpace, src, dst netip.AddrPort, tos int, p *rdmacm.ConnParam, setup func(*rdmacm.ID) error) (e *cmEnd, ev rdmacm.Event, err error) {
	id, err := rdmacm.NewID(a.ch, space)
	if err != nil {
		return nil, ev, err
	}
	e = newCMEnd(id)
	defer func() {
		if err != nil {
			err = errors.Join(err, id.Close())
		}
	}()
	if err = id.SetSecurity(a.security); err != nil {
		return nil, ev, err
	}
	if err = id.ResolveAddr(src, dst); err != nil {
		return nil, ev, err
	}
	if _, err = a.expect(e, rdmacm.EventAddrResolved); err != nil {
		return nil, ev, err
	}
	if tos >= 0 {
		if err = id.SetTOS(uint8(tos)); err != nil {
			return nil, ev, err
		}
	}
	if err = id.ResolveRoute(); err != nil {
		return nil, ev, err
	}
	if _, err = a.expect(e, rdmacm.EventRouteResolved); err != nil {
		return nil, ev, err
	}
	if err = setup(id); err != nil {
		return nil, ev, err
	}
	if err = id.Connect(p); err != nil {
		return nil, ev, err
	}
	ev, err = a.expect(e, rdmacm.EventEstablished)
	return e, ev, err
}

// addresses returns where the server is or, for a server, where it listens.
func (p *params) addresses(ctx context.Context) (src, dst netip.AddrPort, err error) {
	port := uint16(p.port)
	if p.host == "" {
		own := p.sourceIP
		switch {
		case own.IsValid():
		case p.ipv6:
			own = netip.IPv6Unspecified()
		default:
			own = netip.IPv4Unspecified()
		}
		return netip.AddrPortFrom(own, port), dst, nil
	}
	like := p.sourceIP
	if p.ipv6 && !like.IsValid() {
		like = netip.IPv6Unspecified()
	}
	peer, err := cm.Lookup(ctx, p.host, false, like)
	if err != nil {
		return src, dst, fail(err, "Problem in resolving basic address and port")
	}
	if p.sourceIP.IsValid() {
		src = netip.AddrPortFrom(p.sourceIP, 0)
	}
	return src, netip.AddrPortFrom(peer, port), nil
}

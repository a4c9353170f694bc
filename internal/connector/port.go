package connector

import (
	"errors"
	"net/netip"
	"syscall"
	"time"

	"github.com/adverb-rdma/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// PortSpace says whose ports are meant. Its values are those of rdmacm.PortSpace.
type PortSpace uint16

// Name is what a port is called: a number of a port space at an address or, of the address family AF_IB, a service ID
// at a GID.
type Name struct {
	PS   PortSpace
	Addr netip.Addr // that the GID stands for
	Port uint16     // of IB the low bits of the service ID

	IB      bool   // the messages say nothing of IP addresses
	Service uint64 // of IB
}

// At returns the address and port.
func (n Name) At() netip.AddrPort { return netip.AddrPortFrom(n.Addr, n.Port) }

// service returns the service ID.
func (n Name) service() uint64 {
	if n.IB {
		return n.Service
	}
	return wire.RDMAServiceID(uint16(n.PS), n.Port)
}

// errNoGIDs is the error for AF_IB on iWARP.
var errNoGIDs = verbs.Errorf(verbs.ErrUnsupported, "iWARP has no GIDs and no service IDs: use IP addresses and ports")

// ibPort is a port of a port space on one of the device's addresses. It has one owner at a time among
// all programs of the host.
type ibPort struct {
	c         *ibConnector
	name      Name
	own       func() error // of a port that is shared, or nil
	free      func()
	onRequest func(*Request) func(Event)

	listener *cm.Listener // or nil
}

// Serve opens an address of the device. It fails with the link's error where the device cannot receive at it.
func (c *ibConnector) Serve(addr netip.Addr) error {
	sgid, _, err := chosen(c.dev, addr)
	if err != nil {
		return err
	}
	return c.qp1.gsi.Serve(sgid)
}

// Claim takes a port. It fails with EADDRINUSE and verbs.ErrBusy while somebody else has it in another way, and with the
// link's error where the device cannot receive at the address.
func (c *ibConnector) Claim(name Name, shared bool) (Port, error) {
	sgid, _, err := chosen(c.dev, name.Addr)
	if err != nil {
		return nil, err
	}
	service := name.service()
	var own func() error
	var free func()
	if shared {
		own, free, err = c.qp1.gsi.ShareService(sgid, service)
	} else {
		free, err = c.qp1.gsi.ClaimService(sgid, service)
	}
	if err != nil {
		return nil, inUse(err)
	}
	return &ibPort{c: c, name: name, own: own, free: free}, nil
}

// inUse makes an error EADDRINUSE if somebody else has a port.
func inUse(err error) error {
	if errors.Is(err, verbs.ErrBusy) {
		return verbs.Errorf(syscall.EADDRINUSE, "%w", err)
	}
	return err
}

// Own implements Port.
func (p *ibPort) Own() error {
	if p.own == nil {
		return nil
	}
	if err := p.own(); err != nil {
		return inUse(err)
	}
	p.own = nil
	return nil
}

// Listen has onRequest called for requests that come to the port, on the connector's goroutine.
// onRequest returns the function that takes the new connection's events, or nil to reject the
// request. Up to backlog requests wait to be answered.
func (p *ibPort) Listen(backlog int, onRequest func(*Request) func(Event)) error {
	p.onRequest = onRequest
	return p.c.do(func(time.Duration) (err error) {
		if p.listener, err = p.c.machine.Listen(p.name.service(), p.name.Addr, backlog); err == nil {
			p.listener.User = p
		}
		return err
	})
}

// Release ends the listening and gives the port back. It rejects requests that were not handed out.
func (p *ibPort) Release() {
	_ = p.c.do(func(now time.Duration) error {
		if p.listener != nil {
			p.listener.Close(now)
		}
		return nil
	})
	p.free()
}

// Request is a peer's wish to connect or, if Type is verbs.QPTypeUD, to know the QP of a service.
type Request struct {
	Conn          Conn // to be answered by Accept or Reject
	Type          verbs.QPType
	Local, Remote netip.AddrPort
	TOS           uint8 // of the peer's packets; 0 where the connector knows it of QPAttr alone

	// Params are the peer's, its resources as they are for this end. Of a UD request only
	// PrivateData counts.
	Params Params
}

// requested hands a request of the machine out, or rejects it.
func (p *ibPort) requested(ev *cm.Event) {
	r, no := p.read(ev)
	if no.reason == 0 {
		if conn := r.Conn.(*ibConn); conn.hear(p.onRequest(r)) {
			return
		}
	}
	_ = p.c.do(func(now time.Duration) error {
		if ev.SIDR != nil {
			ev.SIDR.Close(now) // which says no
			return nil
		}
		if no.reason != 0 {
			_ = ev.Conn.Reject(now, no.reason, no.info, nil)
		}
		ev.Conn.Close(now)
		return nil
	})
}

// hear has f take the events of a new connection. It returns false if there is no f.
func (c *ibConn) hear(f func(Event)) bool {
	c.handle = f
	return f != nil
}

// answers makes a new connection the end that answers a request of the machine. The caller holds c.c.mu.
func (c *ibConn) answers(ev *cm.Event) {
	c.pkey = verbs.PKey(ev.Request.PKey)
	if ev.SIDR != nil {
		ev.SIDR.User, c.lookup = c, ev.SIDR
		return
	}
	ev.Conn.User, c.ib = c, ev.Conn
	c.agreed = agreement{
		mtu: verbs.MTU(ev.Request.MTU), retryCount: ev.Request.RetryCount, ackTimeout: ev.Request.ACKTimeout,
		peerQPN: verbs.QPN(ev.Params.QPN), peerPSN: verbs.PSN(ev.Params.PSN), rnrRetry: ev.Params.RNRRetryCount,
	}
}

// refusal says why a request cannot be served. The zero value is no refusal.
type refusal struct {
	reason wire.RejReason
	info   []byte
}

// read makes a Request of the machine's event, unless nobody could serve it.
func (p *ibPort) read(ev *cm.Event) (*Request, refusal) {
	data := ev.Params.PrivateData
	if ev.SIDR != nil {
		data = ev.PrivateData
	}
	remote := netip.AddrPortFrom(link.GIDAddr(ev.Path.Remote), 0) // of IB nobody says from which service
	if !p.name.IB {
		h, err := wire.DecodeIPCMHeader(data)
		if err != nil || h.Dst.Unmap() != link.GIDAddr(ev.Path.Local) {
			// The request is not for IP addresses, or not for ours. Linux answers so.
			return nil, refusal{reason: wire.RejConsumerDefined}
		}
		remote = netip.AddrPortFrom(h.Src.Unmap(), h.SrcPort)
		data = data[wire.IPCMHeaderSize:]
	}
	sgid, err := gidIndex(p.c.dev, ev.Path.Local)
	if err != nil {
		return nil, refusal{reason: wire.RejInvalidGID}
	}
	conn := &ibConn{
		c: p.c, ps: p.name.PS, sgid: sgid, psn: p.c.newPSN(),
		local:  netip.AddrPortFrom(link.GIDAddr(ev.Path.Local), p.name.Port),
		remote: remote,
		path:   ev.Path,
		v1:     link.IsV1(ev.Path.Local),
	}
	r := &Request{Conn: conn, Type: verbs.QPTypeUD, Local: conn.local, Remote: conn.remote, TOS: ev.Path.TrafficClass}
	if ev.SIDR == nil {
		if no := p.check(ev); no.reason != 0 {
			return nil, no
		}
		r.Type = verbs.QPTypeRC
		if ev.Params.UC {
			r.Type = verbs.QPTypeUC
		}
		r.Params = paramsOf(&ev.Params)
		r.Params.RetryCount = ev.Request.RetryCount
	}
	p.c.hold(func() { conn.answers(ev) })
	r.Params.PrivateData = data
	return r, refusal{}
}

// check returns why no QP of the device could serve the connection that a peer asks for.
func (p *ibPort) check(ev *cm.Event) refusal {
	if ev.Params.UC && p.name.PS != wire.PortSpaceIB {
		return refusal{reason: wire.RejInvalidTransportType}
	}
	attr, err := p.c.dev.QueryPort(DevicePort)
	if err != nil {
		return refusal{reason: wire.RejConsumerDefined}
	}
	if verbs.MTU(ev.Request.MTU) > attr.ActiveMTU {
		return refusal{reason: wire.RejInvalidMTU, info: []byte{uint8(attr.ActiveMTU)}}
	}
	return refusal{}
}

package verbs

import (
	"fmt"
	"net/netip"
	"sync"
)

// Values that the specification fixes for the general service interface.
const (
	GSIQPN  QPN  = 1          // the QP of the interface, on every port
	GSIQKey QKey = 0x80010000 // the Q_Key of that QP, and of every message to it
)

// GSI is the general service interface of a device: the QP with number 1 (QP1), which receives
// management datagrams (MADs). Connections are made by MADs, so a GSI is for authors of connection
// managers.
//
// Kernels keep QP1 to themselves. Software devices let programs have it, and the programs that
// share an address share it. A message to QP1 comes to one of them:
//
//   - A message that opens a conversation, REQ or SIDR_REQ, comes to the device that has claimed
//     the service ID in the message. See [GSI.ClaimService].
//   - Every other message of connection management bears a communication ID that its receiver
//     chose. It comes to the device that owns the ID. See [GSI.CommIDs].
//   - A message that belongs to no device comes to some device that has a QP1, so that the sender
//     gets an answer. A program with a QP1 must therefore expect messages that it knows nothing of.
//
// A GSI holds nothing and need not be closed.
type GSI struct {
	dev *Device
	p   ProviderGSI
}

// GSI returns the device's general service interface. The error is ErrUnsupported for a device
// whose QP1 belongs to the kernel.
func (d *Device) GSI() (*GSI, error) {
	const verb = "use the gsi of"
	if err := d.check(verb); err != nil {
		return nil, err
	}
	p, ok := d.p.(ProviderGSI)
	if !ok {
		return nil, wrap(verb, d.name, Errorf(ErrUnsupported, "the device keeps QP1 to itself"))
	}
	return &GSI{d, p}, nil
}

// Device returns the device that g belongs to.
func (g *GSI) Device() *Device { return g.dev }

// CreateQP creates QP1, in the state RESET. Apart from its number it is a UD QP: attr.Type must be
// QPTypeUD or 0. The Q_Key that Modify gives it on the way to INIT must be GSIQKey. A device has one
// QP1 at most; the error for a second one is ErrBusy.
func (g *GSI) CreateQP(pd *PD, attr QPInitAttr) (*QP, error) {
	const verb = "create qp1 in"
	if pd == nil || pd.dev != g.dev {
		return nil, wrap("create qp1 of", g.dev.name, invalidf("a PD of the device is needed"))
	}
	attr = attr.orType(QPTypeUD)
	if attr.Type != QPTypeUD {
		return nil, wrap(verb, pd.name, invalidf("type %v: QP1 is a UD QP", attr.Type))
	}
	return pd.createQP(verb, attr, func(a *ProviderQPInitAttr, qp *QP) (ProviderQP, error) {
		return g.p.CreateGSI(pd.p, a, qp)
	})
}

// CommIDs returns which communication IDs belong to the device: base|x for all x below 1<<bits. A
// message to QP1 comes to this device if it bears one of them as the receiver's ID, or as the
// request ID of a SIDR_REP. The IDs belong to the device until it closes.
func (g *GSI) CommIDs() (base uint32, bits int, err error) {
	const verb = "get communication ids of"
	if err := g.dev.check(verb); err != nil {
		return 0, 0, err
	}
	base, bits, err = g.p.CommIDs()
	return base, bits, wrap(verb, g.dev.name, err)
}

// Serve opens the address of a GID, whose place in the table of port 1 is gidIndex, for messages to QP1.
// ClaimService opens the address too. A program that claims a service at several addresses first opens all, so that
// a service which can be seen at one of them is not refused for long for want of the others. The error is
// ErrNotFound if there is no such GID, and else that of ClaimService.
func (g *GSI) Serve(gidIndex int) error {
	return wrap("open an address of", g.dev.name, g.p.Serve(gidIndex))
}

// ClaimService makes messages that ask for a service, REQ and SIDR_REQ, come to this device if they
// are sent to the address of a GID. gidIndex is the GID's place in the table of port 1, and service
// the 64-bit service ID. The claim lasts until release is called or the process ends. release may
// be called more than once. The device cannot be closed while it has a claim.
//
// The error is ErrBusy while this or another program has claimed or shares the service at that address, and
// ErrNotFound if there is no such GID. Where the device cannot receive at the address the error says
// why, and is syscall.EADDRINUSE if a program holds it that shares it with nobody.
func (g *GSI) ClaimService(gidIndex int, service uint64) (release func(), err error) {
	name := fmt.Sprintf("service 0x%016x", service)
	verb := "claim " + name + " on"
	claim := &object{name: name}
	if err := claim.attach(verb, &g.dev.object); err != nil {
		return nil, err
	}
	end, err := g.p.ClaimService(gidIndex, service)
	if err != nil {
		claim.detach()
		return nil, wrap(verb, g.dev.name, err)
	}
	return sync.OnceFunc(func() {
		end()
		claim.detach()
	}), nil
}

// ShareService keeps others from claiming a service at the address of a GID, but lets them share it. Nothing comes to
// those who share. claim makes the share a claim, as of ClaimService: it fails with ErrBusy while others share, and then
// the share stays. The share, or the claim, lasts until release is called or the process ends. release may be called
// more than once, and claim not after it. The device cannot be closed before.
//
// The error is ErrBusy while this or another program has claimed the service at that address. The other errors are those
// of ClaimService.
func (g *GSI) ShareService(gidIndex int, service uint64) (claim func() error, release func(), err error) {
	name := fmt.Sprintf("service 0x%016x", service)
	verb := "share " + name + " on"
	share := &object{name: name}
	if err := share.attach(verb, &g.dev.object); err != nil {
		return nil, nil, err
	}
	own, end, err := g.p.ShareService(gidIndex, service)
	if err != nil {
		share.detach()
		return nil, nil, wrap(verb, g.dev.name, err)
	}
	return func() error { return wrap("claim "+name+" on", g.dev.name, own()) }, sync.OnceFunc(func() {
		end()
		share.detach()
	}), nil
}

// LastWords has a message sent from the device's QP1 if this process ends, however it ends, before
// revoke is called. from is one of the device's addresses and to the peer's, class the traffic class,
// and mad the 256 bytes of the message. It is sent by another program that shares the address, several
// times. Where there is none, or the device cannot do that, nobody sends it. A connection manager has
// peers so told of the end of their connections, as a kernel does for a program that dies.
func (g *GSI) LastWords(from, to netip.Addr, class uint8, mad []byte) (revoke func()) {
	p, ok := g.dev.p.(ProviderLastWords)
	if !ok || g.dev.check("") != nil {
		return func() {}
	}
	return p.LastWords(from, to, class, mad)
}

// ProviderLastWords is for implementers of providers: a ProviderGSI implements it if somebody can speak for a
// program that has died: see [GSI.LastWords].
type ProviderLastWords interface {
	// LastWords keeps no reference to mad. revoke may be called more than once, and after Close.
	LastWords(from, to netip.Addr, class uint8, mad []byte) (revoke func())
}

// Gone returns a channel that is closed when the device can no longer be used, because it was
// closed or because it failed with EventDeviceFatal.
func (g *GSI) Gone() <-chan struct{} { return g.p.Gone() }

// Changed returns a channel that receives a value when the device has looked at its addresses anew: its GIDs may have
// changed, or an address that could not be received at may be ready by now. It holds one value, for one reader.
func (g *GSI) Changed() <-chan struct{} { return g.p.Changed() }

// NotifyCommEst has f called once, when the first request of the peer arrives at an RC or UC QP that
// is in RTR or beyond. If a request has arrived already, f is called at once. It is called on a
// goroutine of its own, which holds no locks. A nil f takes the wish back; a call that is under way
// goes on.
//
// The call tells the passive side of a connection that the active side is ready, even if the
// message that says so is lost. EventCommEst says the same, but is raised only while the QP is in
// RTR, so it is missed by a QP that went on to RTS first.
//
// A device that would wait for a UC QP's neighbor at RTR does not if it was called before: the answer to
// the active side finds the neighbor.
//
// The error is ErrUnsupported for a UD QP, and for a device that cannot tell.
func (qp *QP) NotifyCommEst(f func()) error {
	const verb = "wait for communication on"
	if err := qp.check(verb); err != nil {
		return err
	}
	if qp.typ == QPTypeUD {
		return wrap(verb, qp.name, Errorf(ErrUnsupported, "a UD QP has no peer"))
	}
	p, ok := qp.p.(ProviderCommEst)
	if !ok {
		return wrap(verb, qp.name, Errorf(ErrUnsupported, "the device does not tell when a peer's first packet comes"))
	}
	p.NotifyCommEst(f)
	return nil
}

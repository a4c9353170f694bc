package verbs

import (
	"fmt"
	"sync"
)

// What the specification fixes for the general service interface.
const (
	GSIQPN  QPN  = 1          // its QP on every port
	GSIQKey QKey = 0x80010000 // of that QP, and of everything that is sent to it
)

// GSI is the general service interface of a device: QP1, to which management datagrams
// (MADs) go, such as those by which connections are made. It is for authors of connection managers. Kernels
// keep QP1 to themselves; software devices let programs have it, and several programs share it:
//
//   - One QP of the device is QP1: CreateQP.
//   - A message that opens a conversation, REQ or SIDR_REQ, comes to the device that has claimed its service
//     ID: ClaimService.
//   - All other messages of connection management come to the device from which the communication ID was drawn that
//     they bear: CommIDs.
//   - What belongs to no device comes to one that has a QP1, so that somebody can answer that there is nobody. A QP1
//     must therefore expect messages that it knows nothing about.
//
// A GSI holds nothing and need not be closed.
type GSI struct {
	dev *Device
	p   ProviderGSI
}

// GSI returns the device's general service interface, or ErrUnsupported where the kernel keeps it to itself.
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

// CreateQP creates QP1, in the state RESET. In all but its number it is a UD QP, so attr.Type must be QPTypeUD or
// 0; its Q_Key, an attribute of the transition to INIT, must be GSIQKey. A device has one at most: a
// second is ErrBusy.
func (g *GSI) CreateQP(pd *PD, attr QPInitAttr) (*QP, error) {
	const verb = "create qp1 in"
	if pd == nil || pd.dev != g.dev {
		return nil, wrap("create qp1 of", g.dev.name, invalidf("a PD of the device is needed"))
	}
	if attr.Type == 0 {
		attr.Type = QPTypeUD
	}
	if attr.Type != QPTypeUD {
		return nil, wrap(verb, pd.name, invalidf("type %v: QP1 is a UD QP", attr.Type))
	}
	return pd.createQP(verb, attr, func(a *ProviderQPInitAttr, qp *QP) (ProviderQP, error) {
		return g.p.CreateGSI(pd.p, a, qp)
	})
}

// CommIDs returns which communication IDs are the device's: base|x for all x below 1<<bits. Messages to QP1 that bear
// one of them as the receiver's ID, or as the request ID of a SIDR_REP, come to this device, whichever programs
// share the address. The IDs stay the device's until it closes.
func (g *GSI) CommIDs() (base uint32, bits int, err error) {
	const verb = "get communication ids of"
	if err := g.dev.check(verb); err != nil {
		return 0, 0, err
	}
	base, bits, err = g.p.CommIDs()
	return base, bits, wrap(verb, g.dev.name, err)
}

// ClaimService has messages that ask for a service at the address of a GID, REQ and SIDR_REQ, come to this device. It
// fails with ErrBusy, address in use, while this or another program has the service at that address, and with
// ErrNotFound if there is no such GID. The claim ends with release, or with the process; release may be called
// more than once. The device cannot be closed before.
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

// Gone is closed when the device can be used no longer: it has been closed by its provider, or has failed with
// EventDeviceFatal.
func (g *GSI) Gone() <-chan struct{} { return g.p.Gone() }

// NotifyCommEst has f called once, when the first request of the peer arrives at an RC or UC QP that is in RTR or beyond, or at
// once if one has arrived already. It tells the passive side of a connection that the active side is ready, should
// the message that says so be lost. Other than EventCommEst, which is raised in RTR alone, it does not depend
// on which of the two comes first. f is called on a goroutine of its own, which holds no locks. nil takes the wish
// back; a call that is under way goes on. Where the device cannot tell, the error is ErrUnsupported.
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

package hca

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/idtable"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

const (
	gsiQPN = wire.GSIQPN

	// A device chooses the lower commIDBits bits of a communication ID. The 12 bits above them are the number
	// of a block of QPNs. By that, processes that share QP1 tell whose an ID is.
	commIDBits = 32 - (24 - idtable.BlockBits)
)

// gsi is a device's part in QP1: its QP of that number, which is not in the table of QPs, and the
// services that it serves.
type gsi struct {
	dev *Device
	qp  atomic.Pointer[qp]

	mu       sync.Mutex // orders opening and closing too
	services map[service]*serviceUse
}

// serviceUse says who uses a service: a user that has claimed the service, or users that share it.
type serviceUse struct {
	claimed bool
	shares  int
	claim   func() (bool, error) // of the shares, with other programs; nil where there are none
	end     func()
}

// service is a service ID at an address.
type service struct {
	addr netip.Addr
	id   uint64
}

var _ verbs.ProviderGSI = (*Device)(nil)

// CreateGSI implements verbs.ProviderGSI.
func (d *Device) CreateGSI(p verbs.ProviderPD, attr *verbs.ProviderQPInitAttr, user *verbs.QP) (verbs.ProviderQP, error) {
	// The other processes know this process by a block.
	if _, err := d.firstBlock(); err != nil {
		return nil, err
	}
	q := p.(*pd).newQP(attr, user)
	q.number(gsiQPN, attr)
	g := &d.gsi
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.qp.Load() != nil {
		return nil, verbs.Errorf(verbs.ErrBusy, "the device has its QP1 already: close that first")
	}
	q.sendCQ.attach(q)
	q.recvCQ.attach(q)
	g.qp.Store(q)
	p.(*pd).gsi.Store(true)
	if d.config.ServeGSI != nil {
		d.config.ServeGSI(true)
	}
	return q, nil
}

// close gives QP1 up. The QP calls it when it closes.
func (g *gsi) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dev.config.ServeGSI != nil {
		g.dev.config.ServeGSI(false)
	}
	g.qp.Swap(nil).pd.gsi.Store(false)
}

// firstBlock returns the block of QPNs by which other processes know this one.
func (d *Device) firstBlock() (uint32, error) {
	block, err := d.shards[0].qps.First()
	if err != nil {
		return 0, numberError(err)
	}
	return block, nil
}

// CommIDs implements verbs.ProviderGSI.
func (d *Device) CommIDs() (base uint32, bits int, err error) {
	block, err := d.firstBlock()
	return block << commIDBits, commIDBits, err
}

// Serve implements verbs.ProviderGSI.
func (d *Device) Serve(gidIndex int) error {
	_, err := d.serve(gidIndex)
	return err
}

// serve puts QP1 into service at an address. QP1 serves as soon as one address of the device can be received at.
// But a program that claims a service at another one would wait for requests in vain, and so would its clients.
func (d *Device) serve(gidIndex int) (netip.Addr, error) {
	addr, err := d.port.addr(gidIndex)
	if err != nil {
		return netip.Addr{}, err
	}
	if _, err := d.firstBlock(); err != nil {
		return netip.Addr{}, err
	}
	_, err = d.engine(d.shards[0], addr)
	return addr, err
}

// ClaimService implements verbs.ProviderGSI.
func (d *Device) ClaimService(gidIndex int, id uint64) (release func(), err error) {
	addr, err := d.serve(gidIndex)
	if err != nil {
		return nil, err
	}
	g, s := &d.gsi, service{addr, id}
	g.mu.Lock()
	defer g.mu.Unlock()
	if u := g.services[s]; u != nil {
		return nil, u.busy(addr)
	}
	u := &serviceUse{claimed: true, end: func() {}}
	if d.config.ClaimService != nil {
		var ok bool
		if u.end, ok, err = d.config.ClaimService(addr, id); err != nil {
			return nil, err
		} else if !ok {
			return nil, errServed(addr)
		}
	}
	g.use(s, u)
	return func() { g.release(s) }, nil
}

// ShareService implements verbs.ProviderGSI.
func (d *Device) ShareService(gidIndex int, id uint64) (claim func() error, release func(), err error) {
	addr, err := d.serve(gidIndex)
	if err != nil {
		return nil, nil, err
	}
	g, s := &d.gsi, service{addr, id}
	g.mu.Lock()
	defer g.mu.Unlock()
	u := g.services[s]
	switch {
	case u != nil && u.claimed:
		return nil, nil, u.busy(addr)
	case u == nil:
		u = &serviceUse{end: func() {}}
		if d.config.ShareService != nil {
			var ok bool
			if u.claim, u.end, ok, err = d.config.ShareService(addr, id); err != nil {
				return nil, nil, err
			} else if !ok {
				return nil, nil, errServed(addr)
			}
		}
		g.use(s, u)
	}
	u.shares++
	return func() error { return g.claim(s) }, func() { g.release(s) }, nil
}

// use takes note of a use. The caller holds g.mu.
func (g *gsi) use(s service, u *serviceUse) {
	if g.services == nil {
		g.services = map[service]*serviceUse{}
	}
	g.services[s] = u
}

// claim makes the only share of a service a claim.
func (g *gsi) claim(s service) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	u := g.services[s]
	if u.shares > 1 {
		return u.busy(s.addr)
	}
	if u.claim != nil {
		if ok, err := u.claim(); err != nil {
			return err
		} else if !ok {
			return errServed(s.addr)
		}
	}
	u.claimed = true
	return nil
}

// release takes back a claim or a share. The last ends the use.
func (g *gsi) release(s service) {
	g.mu.Lock()
	defer g.mu.Unlock()
	u := g.services[s]
	if u.shares--; u.shares <= 0 { // a claim that was no share has none
		u.end()
		delete(g.services, s)
	}
}

// busy says who keeps others from a service.
func (u *serviceUse) busy(addr netip.Addr) error {
	if u.claimed {
		return verbs.Errorf(verbs.ErrBusy, "address in use: this device serves it at %v already", addr)
	}
	return verbs.Errorf(verbs.ErrBusy, "address in use: others of this device share it at %v with those who share it too", addr)
}

func errServed(addr netip.Addr) error {
	return verbs.Errorf(verbs.ErrBusy, "address in use: another program serves it at %v", addr)
}

// LastWords implements verbs.ProviderLastWords.
func (d *Device) LastWords(from, to netip.Addr, class uint8, mad []byte) (revoke func()) {
	if d.config.LastWords == nil {
		return func() {}
	}
	return d.config.LastWords(from, to, class, mad)
}

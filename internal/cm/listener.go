package cm

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/adverb-rdma/adverb/internal/crowd"
)

// Listener takes the REQs and SIDR_REQs for a service ID.
type Listener struct {
	User any // the caller's

	m       *Machine
	service uint64
	local   netip.Addr // zero for any
	closed  bool

	unanswered *attempts // requests
}

// Listen takes the requests for a service ID that are sent to one address, or to any if local is
// zero. backlog limits the requests that are neither accepted nor rejected nor closed. A backlog
// outside 1 to 1024 counts as 1024. A request beyond it takes the place of the oldest one of the source
// that has the most, if its own source has fewer. Otherwise a REQ is dropped, and its sender repeats
// it, and a SIDR_REQ is rejected. Listen fails with [ErrServiceInUse].
func (m *Machine) Listen(service uint64, local netip.Addr, backlog int) (*Listener, error) {
	local = bare(local)
	at := m.services[service]
	if _, any := at[netip.Addr{}]; any || at[local] != nil || !local.IsValid() && len(at) > 0 {
		return nil, fmt.Errorf("cm: listen on service %#016x: %w", service, ErrServiceInUse)
	}
	if at == nil {
		at = map[netip.Addr]*Listener{}
		m.services[service] = at
	}
	if backlog <= 0 || backlog > maxBacklog {
		backlog = maxBacklog
	}
	l := &Listener{m: m, service: service, local: local, unanswered: crowd.New[attempt](backlog, backlog)}
	at[local] = l
	return l, nil
}

// Service returns the service ID.
func (l *Listener) Service() uint64 { return l.service }

// Local returns the address. The zero address stands for any.
func (l *Listener) Local() netip.Addr { return l.local }

// Close ends the listener. It rejects requests whose events nobody has taken. The others remain the
// user's.
func (l *Listener) Close(now time.Duration) {
	if l.closed {
		return
	}
	l.closed = true
	at := l.m.services[l.service]
	delete(at, l.local)
	if len(at) == 0 {
		delete(l.m.services, l.service)
	}
	var conns []*Conn
	var sidrs []*SIDR
	for who := range l.unanswered.All() {
		switch who := who.(type) {
		case *Conn:
			if !who.delivered {
				conns = append(conns, who)
			}
		case *SIDR:
			if !who.delivered {
				sidrs = append(sidrs, who)
			}
		}
	}
	slices.SortFunc(conns, func(a, b *Conn) int { return cmp.Compare(a.id, b.id) }) // maps have no order, and runs must repeat
	for _, c := range conns {
		c.Close(now)
	}
	slices.SortFunc(sidrs, func(a, b *SIDR) int { return cmp.Or(cmp.Compare(a.id, b.id), a.path.Remote.Compare(b.path.Remote)) })
	for _, s := range sidrs {
		s.Close(now)
	}
}

// listener finds the listener for a service at an address, or nil.
func (m *Machine) listener(service uint64, local netip.Addr) *Listener {
	at := m.services[service]
	if l := at[bare(local)]; l != nil {
		return l
	}
	return at[netip.Addr{}]
}

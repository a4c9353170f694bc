package cm

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Listener takes the REQs and SIDR_REQs for a service ID.
type Listener struct {
	User any // the caller's

	m       *Machine
	service uint64
	local   netip.Addr // zero for any
	backlog int
	closed  bool

	// Requests that are not answered yet.
	conns map[*Conn]struct{}
	sidrs map[*SIDR]struct{}
}

// Listen takes the requests for a service ID that are sent to one address, or to any if local is
// zero. backlog limits the requests that are neither accepted nor rejected nor closed. A backlog
// outside 1 to 1024 counts as 1024. A REQ beyond it is dropped, and its sender repeats it. A
// SIDR_REQ beyond it is rejected. Listen fails with [ErrServiceInUse].
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
	l := &Listener{m: m, service: service, local: local, backlog: backlog, conns: map[*Conn]struct{}{}, sidrs: map[*SIDR]struct{}{}}
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
	for c := range l.conns {
		if !c.delivered {
			conns = append(conns, c)
		}
	}
	slices.SortFunc(conns, func(a, b *Conn) int { return cmp.Compare(a.id, b.id) }) // maps have no order, and runs must repeat
	for _, c := range conns {
		c.Close(now)
	}
	var sidrs []*SIDR
	for s := range l.sidrs {
		if !s.delivered {
			sidrs = append(sidrs, s)
		}
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

// full reports whether there is no room for another request, and counts the request as refused if so.
func (l *Listener) full() bool {
	if len(l.conns)+len(l.sidrs) < l.backlog && l.m.requests < maxRequests {
		return false
	}
	l.m.stats.Refused++
	return true
}

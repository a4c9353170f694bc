package rdmacm

import (
	"net/netip"
	"sync"

	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/verbs"
)

// agent has the things that the IDs of one device share: the connector, and the list of the IDs to
// which a failure of the device is reported. Locks are taken in the order ID.mu, agent.mu.
type agent struct {
	dev       *verbs.Device
	connector connector.Connector
	limits    limits

	followers

	mu   sync.Mutex
	ids  map[*ID]struct{}
	from map[netip.AddrPort]*ID // those that have been given a port to connect from

	uses   int           // guarded by agents.mu; 0 from the last release on
	gone   bool          // guarded by opened.mu: the device has failed
	closed chan struct{} // nothing is left of it
}

// agents are those of this process.
var agents = struct {
	mu sync.Mutex
	of map[*verbs.Device]*agent
}{of: map[*verbs.Device]*agent{}}

// acquireAgent returns the device's agent. Each call needs a release.
func acquireAgent(dev *verbs.Device) (*agent, error) {
	agents.mu.Lock()
	for a := agents.of[dev]; a != nil; a = agents.of[dev] {
		if a.uses > 0 {
			a.uses++
			agents.mu.Unlock()
			return a, nil
		}
		agents.mu.Unlock()
		<-a.closed
		agents.mu.Lock()
	}
	defer agents.mu.Unlock()
	attr, err := dev.Query()
	if err != nil {
		return nil, err
	}
	a := &agent{dev: dev, limits: limitsOf(&attr), ids: map[*ID]struct{}{}, from: map[netip.AddrPort]*ID{}, closed: make(chan struct{}), uses: 1}
	if a.connector, err = connector.Open(dev, connector.Watcher{Gone: a.deviceGone, Changed: a.changed}); err != nil {
		return nil, err
	}
	agents.of[dev] = a
	return a, nil
}

// retain is acquireAgent for an agent that is known. It returns false if the agent is ending.
func (a *agent) retain() bool {
	agents.mu.Lock()
	defer agents.mu.Unlock()
	if a.uses == 0 {
		return false
	}
	a.uses++
	return true
}

// release gives an agent back. The last release ends the agent, and waits for the end.
func (a *agent) release() {
	agents.mu.Lock()
	a.uses--
	last := a.uses == 0
	agents.mu.Unlock()
	if last {
		a.end()
	}
}

// releaseLast is release if nobody else uses the agent. Otherwise it does nothing, and returns false.
func (a *agent) releaseLast() bool {
	agents.mu.Lock()
	if a.uses > 1 {
		agents.mu.Unlock()
		return false
	}
	a.uses = 0
	agents.mu.Unlock()
	a.end()
	return true
}

// end ends an agent that nobody uses.
func (a *agent) end() {
	a.connector.Close()
	agents.mu.Lock()
	delete(agents.of, a.dev)
	agents.mu.Unlock()
	close(a.closed)
}

// over reports whether nothing is left of an agent.
func (a *agent) over() bool {
	select {
	case <-a.closed:
		return true
	default:
		return false
	}
}

// hasFailed reports whether the device has failed.
func (a *agent) hasFailed() bool {
	opened.mu.Lock()
	defer opened.mu.Unlock()
	return a.gone
}

// add notes an ID that a failure of the device concerns.
func (a *agent) add(id *ID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ids[id] = struct{}{}
}

// remove undoes add and portFrom. The caller holds id.mu.
func (a *agent) remove(id *ID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.ids, id)
	if a.from[id.local] == id {
		delete(a.from, id.local)
	}
}

// portFrom returns a port for an ID to connect from. It is not claimed, since nothing comes to it. But peers tell
// connections apart by their addresses, so no other ID of this process has it, unless nearly all ports are given out.
func (a *agent) portFrom(id *ID, addr netip.Addr) uint16 {
	a.mu.Lock()
	defer a.mu.Unlock()
	for tries := 1; ; tries++ {
		at := netip.AddrPortFrom(addr, randomPort(a))
		if a.from[at] == nil {
			a.from[at] = id
			return at.Port()
		}
		if tries == portTries {
			return at.Port()
		}
	}
}

// changePort gives an ID the port that it has got in place of portFrom's. The caller holds id.mu.
func (a *agent) changePort(id *ID, port uint16) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.from[id.local] == id { // remove would not find it any more
		delete(a.from, id.local)
	}
	id.setPort(port)
}

// deviceGone tells the IDs that the device has failed. The connector's goroutine calls it.
func (a *agent) deviceGone(err error) {
	forget(a)
	a.mu.Lock()
	ids := make([]*ID, 0, len(a.ids))
	for id := range a.ids {
		ids = append(ids, id)
	}
	a.mu.Unlock()
	for _, id := range ids {
		id.deviceGone(a, err)
	}
	a.changed()
}

package rdmacm

import (
	"sync"

	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/verbs"
)

// devicePort is the port of RoCE devices, which have no other.
const devicePort = connector.DevicePort

// agent is what the IDs of one device share: the connector, the default PD, and the list of those
// whom a failure of the device concerns. Locks are taken in the order ID.mu, agent.mu.
type agent struct {
	dev       *verbs.Device
	connector *connector.Connector
	limits    limits

	mu  sync.Mutex
	pd  *verbs.PD // made on demand
	ids map[*ID]struct{}

	uses   int           // guarded by agents.mu; 0 from the last release on
	closed chan struct{} // nothing is left of it
}

// agents are those of this process.
var agents = struct {
	mu sync.Mutex
	of map[*verbs.Device]*agent

	// pds are default PDs that programs have objects in, and that have therefore outlived their
	// agent.
	pds map[*verbs.Device]*verbs.PD
}{of: map[*verbs.Device]*agent{}, pds: map[*verbs.Device]*verbs.PD{}}

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
	a := &agent{dev: dev, limits: limitsOf(&attr), ids: map[*ID]struct{}{}, closed: make(chan struct{}), uses: 1}
	if a.connector, err = connector.Open(dev, a.deviceGone); err != nil {
		return nil, err
	}
	agents.of[dev] = a
	a.pd = agents.pds[dev] // so that memory registered for one connection serves the next
	delete(agents.pds, dev)
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

// release gives an agent back. The last release ends it, and waits for that.
func (a *agent) release() {
	agents.mu.Lock()
	a.uses--
	last := a.uses == 0
	agents.mu.Unlock()
	if !last {
		return
	}
	a.connector.Close()
	agents.mu.Lock()
	if a.pd != nil && a.pd.Close() != nil {
		agents.pds[a.dev] = a.pd
	}
	delete(agents.of, a.dev)
	agents.mu.Unlock()
	close(a.closed)
}

// add notes an ID that a failure of the device concerns.
func (a *agent) add(id *ID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ids[id] = struct{}{}
}

func (a *agent) remove(id *ID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.ids, id)
}

// deviceGone tells the IDs that the device has failed. The connector's goroutine calls it.
func (a *agent) deviceGone(err error) {
	forget(a.dev)
	a.mu.Lock()
	ids := make([]*ID, 0, len(a.ids))
	for id := range a.ids {
		ids = append(ids, id)
	}
	a.mu.Unlock()
	for _, id := range ids {
		id.deviceGone(err)
	}
}

// defaultPD returns the PD of IDs that were given none.
func (a *agent) defaultPD() (*verbs.PD, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pd == nil {
		pd, err := a.dev.AllocPD()
		if err != nil {
			return nil, err
		}
		a.pd = pd
	}
	return a.pd, nil
}

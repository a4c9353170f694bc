package rdmacm

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/verbs"
)

// A binding to all addresses follows them: those of the devices that the program has named or, where it has named none,
// those of all devices of the host, which come and go as well.
//
//	kernel --> provider.Watch ------------------------> follower.poke --> follower.look
//	       --> device --> connector --> agent.changed --/                     |
//	                                                      ports are claimed, listened at and given back
//
// One goroutine for each such binding looks, without the ID's lock: to open a device or an address takes time, and to
// give one back may mean to wait for a connector's goroutine, which may wait for that lock.
type follower struct {
	id   *ID
	b    *binding
	host bool // the devices are the host's

	unwatch func()
	wake    chan struct{}
	done    chan struct{}
	ended   chan struct{} // closed when the goroutine has ended; nil before start
	unwell  map[netip.Addr]bool
}

// A device that could not be opened, or an address in use, is tried again after firstRetry, and then at times that
// double up to lastRetry.
const (
	firstRetry = 2 * time.Second
	lastRetry  = time.Minute
)

// newFollower makes a follower for a binding that is about to be made. From now on it misses no change.
func newFollower(id *ID, b *binding) *follower {
	f := &follower{id: id, b: b, host: len(id.ch.devices) == 0, wake: make(chan struct{}, 1), done: make(chan struct{}),
		unwell: map[netip.Addr]bool{}}
	f.unwatch = func() {}
	if f.host {
		f.unwatch = verbs.WatchDevices(f.poke)
	}
	return f
}

// poke has the follower look. It does not block.
func (f *follower) poke() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// start begins to follow. The caller holds id.mu. A nil follower has nothing to follow, here and below.
func (f *follower) start() {
	if f == nil {
		return
	}
	for _, a := range f.b.agents {
		a.follow(f)
	}
	f.ended = make(chan struct{})
	f.poke() // for addresses that could not be used before
	go f.run()
}

// stop ends the follower, which is not looking any more afterwards. The caller does not hold id.mu, unless the follower
// was not started.
func (f *follower) stop() {
	if f == nil {
		return
	}
	f.unwatch()
	close(f.done)
	if f.ended == nil {
		return
	}
	<-f.ended
	for _, a := range f.b.agents {
		a.unfollow(f)
	}
}

// run is the follower's goroutine.
func (f *follower) run() {
	defer close(f.ended)
	retry := time.NewTimer(0)
	retry.Stop()
	defer retry.Stop()
	wait := firstRetry
	for {
		select {
		case <-f.wake:
			wait = firstRetry
		case <-retry.C:
			wait = min(2*wait, lastRetry)
		case <-f.done:
			return
		}
		retry.Stop()
		if f.look() {
			retry.Reset(wait)
		}
	}
}

// follows reports whether there is something to follow: the ID is bound to all addresses still, and has not found its
// device. The caller holds id.mu.
func (f *follower) follows() bool {
	return f.id.binding == f.b && f.id.agent == nil && (f.id.state == stateBound || f.id.state == stateListening)
}

// look brings the binding up to date. It returns true if it should look again, though nothing changes.
func (f *follower) look() (again bool) {
	lost := f.dropFailed()
	devs := f.id.ch.devices
	if f.host {
		var errs []error
		var err error
		devs, errs, err = present()
		again = err != nil || len(errs) > 0
	}
	for _, dev := range devs {
		again = f.join(dev) || again
	}
	found := false
	for _, a := range f.agents() {
		l, g, retry := f.match(a)
		lost, found, again = lost || l, found || g, again || retry
	}
	if lost || found {
		f.report()
	}
	return again
}

// agents returns those of the binding.
func (f *follower) agents() []*agent {
	f.id.mu.Lock()
	defer f.id.mu.Unlock()
	if !f.follows() {
		return nil
	}
	return slices.Clone(f.b.agents)
}

// report tells the program that the addresses have changed at which it gets requests.
func (f *follower) report() {
	f.id.mu.Lock()
	defer f.id.mu.Unlock()
	if f.follows() && f.id.state == stateListening {
		f.id.ch.addOnce(Event{Type: EventAddrChange, ID: f.id})
	}
}

// dropFailed gives back the devices that have failed. It reports whether there were any that served. If all have that the
// program has named, they stay: their end is the ID's, which hears of it from them.
func (f *follower) dropFailed() (served bool) {
	all := f.agents()
	failed := slices.DeleteFunc(slices.Clone(all), func(a *agent) bool { return !a.hasFailed() })
	if !f.host && len(failed) == len(all) {
		return false
	}
	for _, a := range failed {
		served = f.release(a, func(*claim) bool { return true }) || served
		f.leave(a)
	}
	if f.host {
		closeUnused()
	}
	return served
}

// join takes a device in, unless it is there. It returns true if it should be called again, as no address of the device
// can be used yet.
func (f *follower) join(dev *verbs.Device) (again bool) {
	if slices.ContainsFunc(f.agents(), func(a *agent) bool { return a.dev == dev }) {
		return false
	}
	a, err := acquireAgent(dev)
	if err != nil { // otherwise the device is gone, and its provider tells when there is another
		return isUnready(err)
	}
	f.id.mu.Lock()
	follows := f.follows()
	if follows {
		f.b.addAgent(a)
		a.add(f.id)
		a.follow(f)
	}
	f.id.mu.Unlock()
	if !follows {
		a.release()
		return false
	}
	if a.hasFailed() { // before it was told whom that concerns
		f.leave(a)
	}
	return false
}

// leave gives a device back whose ports are given back.
func (f *follower) leave(a *agent) {
	f.id.mu.Lock()
	i := slices.Index(f.b.agents, a)
	if !f.follows() || i < 0 { // the binding is being released, with the device
		f.id.mu.Unlock()
		return
	}
	f.b.removeAgent(i)
	a.remove(f.id)
	f.id.mu.Unlock()
	a.unfollow(f)
	a.release()
}

// match makes the claims of one device those of its addresses. lost and found say whether addresses are served no more,
// or from now on, and again that one is in the way of another program.
func (f *follower) match(a *agent) (lost, found, again bool) {
	addrs, err := f.b.family.addrs(a.dev)
	if err != nil {
		return false, false, false
	}
	if isActive(a.dev) { // of a port that is down, or cannot be asked, nobody knows the addresses that the port will have when it is up
		lost = f.release(a, func(c *claim) bool { return !slices.Contains(addrs, c.addr) })
	}
	for _, addr := range addrs {
		if !f.lacks(a, addr) {
			continue
		}
		_ = a.connector.Serve(addr) // which may take long; an error comes again from Claim
		served, retry := f.serve(a, addr)
		found, again = found || served, again || retry
	}
	return lost, found, again
}

// isActive reports whether a port of a device is up.
func isActive(dev *verbs.Device) bool {
	dattr, err := dev.Query()
	for port := 1; err == nil && port <= dattr.PhysPortCnt; port++ {
		if attr, err := dev.QueryPort(port); err == nil && attr.State == verbs.PortActive {
			return true
		}
	}
	return false
}

// lacks reports whether the binding should have an address, and does not serve it.
func (f *follower) lacks(a *agent, addr netip.Addr) bool {
	f.id.mu.Lock()
	defer f.id.mu.Unlock()
	return f.follows() && f.b.wants(addr, f.id.options.afOnly) &&
		!slices.ContainsFunc(f.b.claims, func(c claim) bool { return c.agent == a && c.addr == addr && c.port != nil })
}

// serve claims the port at an address, and listens there if the ID does.
func (f *follower) serve(a *agent, addr netip.Addr) (served, again bool) {
	id, b := f.id, f.b
	id.mu.Lock()
	defer id.mu.Unlock()
	if !f.follows() {
		return false, false
	}
	number := id.local.Port()
	port, err := a.connector.Claim(b.family.name(id.ps, addr, number), b.shared)
	if err == nil && id.state == stateListening {
		if err = id.listenAt(a, port); err != nil {
			port.Release()
		}
	}
	if err != nil {
		if !errors.Is(err, verbs.ErrUnsupported) && !f.unwell[addr] && !isUnusable(err) {
			f.unwell[addr] = true
			connector.Unserved(a.dev, netip.AddrPortFrom(addr, number), inUse(id.ps, number, addr, err))
		}
		return false, !errors.Is(err, verbs.ErrUnsupported)
	}
	delete(f.unwell, addr)
	b.addPort(a, addr, port)
	return true, false
}

// release gives those claims of a device back that are not wanted any more. It reports whether any of them served.
func (f *follower) release(a *agent, unwanted func(*claim) bool) (served bool) {
	f.id.mu.Lock()
	var gone []claim
	if f.follows() {
		gone = f.b.removeClaims(func(c *claim) bool { return c.agent == a && unwanted(c) })
	}
	f.id.mu.Unlock()
	for _, c := range gone {
		served = served || c.port != nil
		c.release()
	}
	return served
}

// followers are those of a device's addresses.
type followers struct {
	mu  sync.Mutex
	all map[*follower]struct{}
}

// follow has a follower look whenever the device has looked at its addresses.
func (fs *followers) follow(f *follower) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.all == nil {
		fs.all = map[*follower]struct{}{}
	}
	fs.all[f] = struct{}{}
}

func (fs *followers) unfollow(f *follower) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	delete(fs.all, f)
}

// changed has all look. The connector's goroutine calls it.
func (fs *followers) changed() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for f := range fs.all {
		f.poke()
	}
}

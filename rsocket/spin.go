package rsocket

import (
	"net/netip"
	"sync"
)

// A call that waits looks for a while before it sleeps, if the peer is another process: to sleep and be woken takes
// several times as long as an answer does. A peer in this process needs the processor, and wakes who sleeps sooner.

// ends are the local addresses of this process's connections, by how many have them.
var ends = struct {
	sync.RWMutex
	n map[netip.AddrPort]int
}{n: map[netip.AddrPort]int{}}

// countEnd takes note of n connections more.
func countEnd(a netip.AddrPort, n int) {
	ends.Lock()
	defer ends.Unlock()
	if ends.n[a] += n; ends.n[a] == 0 {
		delete(ends.n, a)
	}
}

// mayLook reports whether to look before sleeping pays.
func (c *Conn) mayLook() bool {
	ends.RLock()
	defer ends.RUnlock()
	return ends.n[c.cm.RemoteAddr()] == 0
}

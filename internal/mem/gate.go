package mem

import "sync/atomic"

// gate counts those who use a region's memory, and keeps new ones out once it is closed. It is one word,
// without a lock.
type gate struct{ users atomic.Int64 }

// gateClosed is added to users by close. There can never be so many users.
const gateClosed = -1 << 62

// enter returns false if the gate is closed.
func (g *gate) enter() bool {
	for {
		n := g.users.Load()
		if n < 0 {
			return false // and users stays as it is: only those who are inside count down to the end
		}
		if g.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// isOpen reports whether the gate is not closed. A user that does not enter the gate asks it each time.
func (g *gate) isOpen() bool { return g.users.Load() >= 0 }

// leave reports whether the gate is closed and this was the last user.
func (g *gate) leave() bool { return g.users.Add(-1) == gateClosed }

// close reports whether nobody is inside. Otherwise a leave will report it.
func (g *gate) close() bool { return g.users.Add(gateClosed) == gateClosed }

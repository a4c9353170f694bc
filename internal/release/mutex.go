package release

import (
	"runtime"
	"sync/atomic"
)

// Mutex is a lock for what takes some ten nanoseconds: Unlock is a Store. Who finds it taken looks again, and gives way to
// other goroutines in between. So nothing that may wait is done under it.
type Mutex struct{ taken atomic.Uint64 }

// looks is how often who waits looks before it gives way.
const looks = 64

// Lock takes the lock.
func (m *Mutex) Lock() {
	if !m.taken.CompareAndSwap(0, 1) {
		m.wait()
	}
}

func (m *Mutex) wait() {
	for n := 1; m.taken.Load() != 0 || !m.taken.CompareAndSwap(0, 1); n++ {
		if n%looks == 0 {
			runtime.Gosched()
		}
	}
}

// Unlock gives the lock back.
func (m *Mutex) Unlock() { Store(&m.taken, 0) }

package bench

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// A cache line that goes to and fro between two cores shows how far the host has put them apart: two
// threads of one core, two cores, or two sockets. All that two processes do together depends on it.
const (
	distanceTurns   = 2000 // of one trial
	distanceTrials  = 10
	cacheLineAndOne = 128 // bytes: CPUs fetch pairs of lines
)

// line is a word on a cache line of its own.
type line struct {
	_ [cacheLineAndOne]byte
	n atomic.Uint32
	_ [cacheLineAndOne]byte
}

// coreDistance returns the nanoseconds that a cache line takes from one core to another, the least of a
// few trials, or 0 where there is one core only. cpus are the two cores, or nil for the first two that
// the process may use.
func coreDistance(cpus []int) float64 {
	if cpus == nil {
		cpus = allowedCPUs()
	}
	if runtime.GOMAXPROCS(0) < 2 || cpus != nil && len(cpus) < 2 {
		return 0
	}
	var there, back line
	var both sync.WaitGroup
	both.Add(2)
	least := time.Duration(0)
	alone := func(i int, f func()) {
		onThread(func() {
			defer both.Done()
			if cpus != nil {
				_ = pin(cpus[i]) // where that is denied, the system keeps the two threads apart
			}
			f()
		})
	}
	alone(0, func() {
		for trial := range uint32(distanceTrials) {
			start := time.Now()
			for i := range uint32(distanceTurns) {
				n := trial*distanceTurns + i + 1
				there.n.Store(n)
				for back.n.Load() != n {
				}
			}
			if d := time.Since(start); least == 0 || d < least {
				least = d
			}
		}
	})
	alone(1, func() {
		for n := range uint32(distanceTrials * distanceTurns) {
			for there.n.Load() != n+1 {
			}
			back.n.Store(n + 1)
		}
	})
	both.Wait()
	return float64(least.Nanoseconds()) / (2 * distanceTurns)
}

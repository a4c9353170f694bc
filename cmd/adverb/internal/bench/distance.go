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
	least := time.Duration(0)
	var there, back line
	ok := onTwoCores(cpus, func() {
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
	}, func() {
		for n := range uint32(distanceTrials * distanceTurns) {
			for there.n.Load() != n+1 {
			}
			back.n.Store(n + 1)
		}
	})
	if !ok {
		return 0
	}
	return float64(least.Nanoseconds()) / (2 * distanceTurns)
}

// onTwoCores calls both functions at once, each on a core of its own, and returns when they have. It reports false if
// there is one core only. cpus are as for coreDistance.
func onTwoCores(cpus []int, first, second func()) bool {
	if cpus == nil {
		cpus = allowedCPUs()
	}
	if !hasTwoCores(cpus) {
		return false
	}
	var both sync.WaitGroup
	both.Add(2)
	for i, f := range []func(){first, second} {
		onThread(func() {
			defer both.Done()
			if cpus != nil {
				_ = pin(cpus[i]) // where that is denied, the system keeps the two threads apart
			}
			f()
		})
	}
	both.Wait()
	return true
}

// hasTwoCores reports whether two threads can run at once on cpus, which are nil where they are not known.
func hasTwoCores(cpus []int) bool {
	return runtime.GOMAXPROCS(0) > 1 && (cpus == nil || len(cpus) > 1)
}

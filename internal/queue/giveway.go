package queue

import (
	"runtime"
	"runtime/metrics"
)

// GiveWay lets other goroutines run while one spins. Whoever was woken a moment ago, by that goroutine or by one that
// it unlocked something for, stands in line on the very processor (Go's P) of the goroutine that spins. Go wakes a
// thread for another processor, if there is one. But that takes 10 µs and more, as long as a spin, and on few cores
// the thread waits in turn for one.
//
// To give way where nobody waits is not free: the scheduler then wakes a thread that finds nothing to do, on the core
// that the peer needs. So a spin asks how many wait. Where some often do, others soon will, as those do who hand a
// request on from goroutine to goroutine. They find a thread awake if the spins there give way whoever waits. In an HTTP
// server or client somebody waits in every third to tenth spin, and with gRPC in most. Two ends that only wait for one
// another have less than one in twenty.
//
// One goroutine uses a GiveWay at a time. A nil one does nothing.
type GiveWay struct {
	waiting func() uint64 // how many goroutines wait for a processor
	yield   func()
	found   int // how often somebody waited of late: see giveWayFound
	looks   int // since it was asked
	every   int // looks after which it asks
}

const (
	// Each look that finds goroutines waiting counts giveWayFound, giveWayMost at most in all, and each spin takes one
	// off. Where more are left than giveWayFrom, a spin gives way in any case.
	giveWayFound = 16
	giveWayFrom  = 128
	giveWayMost  = 512

	// To ask takes some time for each processor. So a spin asks once in so many looks for each giveWayProcs of them.
	giveWayProcs = 8
)

// NewGiveWay makes a GiveWay that asks the runtime who waits.
func NewGiveWay() *GiveWay {
	sample := []metrics.Sample{{Name: "/sched/goroutines/runnable:goroutines"}}
	return &GiveWay{yield: runtime.Gosched, waiting: func() uint64 {
		if metrics.Read(sample); sample[0].Value.Kind() != metrics.KindUint64 { // a runtime that does not know
			return 0
		}
		return sample[0].Value.Uint64()
	}}
}

// Begin is called when a spin begins.
func (g *GiveWay) Begin() {
	if g == nil {
		return
	}
	g.found = max(0, g.found-1)
	g.looks, g.every = 0, 1+runtime.GOMAXPROCS(0)/giveWayProcs
}

// Look is called after a look that has found nothing.
func (g *GiveWay) Look() {
	if g == nil {
		return
	}
	if g.looks++; g.looks < g.every {
		return
	}
	g.looks = 0
	waits := g.waiting() > 0
	if waits {
		g.found = min(g.found+giveWayFound, giveWayMost)
	}
	if waits || g.found > giveWayFrom {
		g.yield()
	}
}

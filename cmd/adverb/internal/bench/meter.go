package bench

import (
	"runtime"
	"time"
)

// A meter tells a loop of operations how long to go on: first for the warm-up, and then for the time in
// which it counts.
type meter struct {
	warmup, length time.Duration
	step           int64 // operations between two looks at the clock
	next           int64
	began          time.Time // of the warm-up, and then of the counting
	counting       bool
	skipped        int64 // operations of the warm-up
	ops            int64
	elapsed        time.Duration
	allocs         int64 // while it counted
	cpus           [2]cpuClock
	cpu            [2]time.Duration // while it counted: of this end and of the other
	knowsCPU       bool
}

// bytesPerLook is how many bytes may pass between two looks at the clock, which cost as much as a small message.
const bytesPerLook = 64 << 10

func newMeter(o *order, size int) *meter {
	step := int64(max(1, min(64, bytesPerLook/size)))
	return &meter{warmup: o.Warmup, length: o.Time, step: step, began: time.Now(), cpus: [2]cpuClock{ownCPU, cpuClockOf(o.peer)}}
}

// on reports whether the loop goes on, after n operations in all.
func (m *meter) on(n int64) bool {
	if n < m.next {
		return true
	}
	m.next = n + m.step
	now := time.Now()
	d := now.Sub(m.began)
	if !m.counting {
		if d >= m.warmup {
			m.counting, m.skipped, m.allocs = true, n, -mallocs()
			m.readCPU()
			m.began = time.Now() // to count allocations takes a moment
		}
		return true
	}
	if d < m.length || n == m.skipped {
		return true
	}
	m.ops, m.elapsed = n-m.skipped, d
	m.readCPU()
	m.allocs += mallocs()
	return false
}

// patience is how long a short measurement waits for the first operations: a path that loses or is shared may bring
// none in less.
const patience = time.Second

// deadline is when the counting ends, whether or not anything is done then.
func (m *meter) deadline() time.Time { return m.began.Add(m.warmup + max(m.length, patience)) }

// expire ends the counting after n operations in all, at the deadline: nothing more has come.
func (m *meter) expire(n int64) {
	if m.counting {
		m.ops, m.elapsed = n-m.skipped, time.Since(m.began)
		m.readCPU()
		m.allocs += mallocs()
	}
}

// readCPU reads the CPU clocks of both ends: at first where the counting begins, and then the time that has passed.
func (m *meter) readCPU() {
	m.knowsCPU = true
	for i := range m.cpus {
		now := m.cpus[i].read()
		m.cpu[i] = now - m.cpu[i]
		m.knowsCPU = m.knowsCPU && now > 0
	}
}

// mallocs is how many objects the process has allocated.
func mallocs() int64 {
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.Mallocs)
}

// result is the result of the measurement. total is the number of all operations.
func (m *meter) result(total int64) result {
	return result{Ops: m.ops, Elapsed: m.elapsed, Allocs: m.allocs, Total: total, OwnCPU: m.cpu[0], PeerCPU: m.cpu[1], KnowsCPU: m.knowsCPU}
}

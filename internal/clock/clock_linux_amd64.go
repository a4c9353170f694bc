package clock

import (
	"os"
	"strings"
	"time"
)

// ticks reads the processor's time stamp counter.
func ticks() uint64

// sources says by which counter Linux tells the time.
const sources = "/sys/devices/system/clocksource/clocksource0/current_clocksource"

// New returns a clock that counts the processor's ticks, or nil where that does not pay. Linux watches over the
// counter, and takes another clock when it finds that its cores disagree or that it stands still.
func New() *Clock {
	source, err := os.ReadFile(sources)
	if err != nil {
		return nil
	}
	switch strings.TrimSpace(string(source)) {
	case "tsc", "kvm-clock":
	default:
		return nil
	}
	start := time.Now()
	since := func() time.Duration { return time.Since(start) }
	if !pays(since) {
		return nil
	}
	return newClock(ticks, since)
}

// pays reports whether ticks is faster than the system's clock. Under some hypervisors each look is a call to them.
func pays(since func() time.Duration) bool {
	const looks, tries = 64, 3
	for range tries { // something may come between
		begin := since()
		for range looks {
			ticks()
		}
		middle := since()
		for range looks {
			since()
		}
		if end := since(); 2*(middle-begin) < end-middle {
			return true
		}
	}
	return false
}

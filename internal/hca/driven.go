package hca

import "time"

// driven takes the place of goroutines in a driven device: see Config.Driven. Nothing guards it, since
// one goroutine calls everything.
type driven struct {
	later   []func()        // for the next Drive
	changed <-chan struct{} // of the network interface
}

// background calls f without the locks that the caller holds.
func (d *Device) background(f func()) {
	if d.config.Driven {
		d.driven.later = append(d.driven.later, f)
		return
	}
	go f()
}

// Drive does the work that the goroutines of a device would have done by now. gathers says that the program polls
// busily from now on: until napTime has passed, only the program's polls make progress, and posts may be delayed until
// a poll. Only driven devices are driven.
func (d *Device) Drive(gathers bool) {
	select {
	case _, ok := <-d.driven.changed:
		if ok {
			d.look()
		}
	default:
	}
	for len(d.driven.later) > 0 {
		f := d.driven.later[0]
		d.driven.later = d.driven.later[1:]
		f()
	}
	for _, e := range *d.engines.Load() {
		e.napping.Store(false)
		for {
			e.rx.Lock()
			n, _, err := e.work(false)
			e.rx.Unlock()
			if err != nil || n == 0 && !e.turns.due() {
				break
			}
		}
		e.napEnd = e.dev.now() + napTime
		e.napping.Store(gathers)
	}
}

// NextDrive returns for how long a driven device need not be driven if nothing arrives and the program does
// nothing, and false if it need not be driven at all. A packet that arrives while the program gathers can wait as long.
func (d *Device) NextDrive() (time.Duration, bool) {
	if len(d.driven.later) > 0 {
		return 0, true
	}
	next := never
	for _, e := range *d.engines.Load() {
		next = min(next, e.timers.next.Load())
		if e.turns.due() || len(e.delayed.list) > 0 {
			at := e.dev.now()
			if e.napping.Load() {
				at = e.napEnd
			}
			next = min(next, int64(at))
		}
	}
	if next == never {
		return 0, false
	}
	return max(0, time.Duration(next)-d.now()), true
}

package recovery

import (
	"math"
	"time"
)

// The parameters of DCQCN as published: Zhu et al., Congestion Control for Large-Scale RDMA Deployments,
// SIGCOMM 2015. Rates are in bytes per second.
const (
	dcqcnTimer    = 55 * time.Microsecond // from one step of alpha, or of the rate, to the next
	dcqcnGain     = 1.0 / 256             // g: by how much a notification counts for alpha
	dcqcnBytes    = 10 << 20              // after so many bytes the rate takes a step as well
	dcqcnRecovery = 5                     // F: steps that only win back the rate that the latest notification has cost
	dcqcnAdditive = 40e6 / 8              // the growth of the target in a step
	dcqcnHyper    = 10                    // by how much more once both the timer and the bytes have taken F steps; as in QCN
)

// This implementation chose these.
const (
	// dcqcnFloor is the least rate. Notifications have no PSN, so they are easily forged: they may slow a
	// connection down, and not stop it.
	dcqcnFloor = 10e6 / 8
	// dcqcnLine is the rate of a line that nobody knows.
	dcqcnLine = 100e9 / 8
	// On a line of less than 1 Gbit/s a step is one part in dcqcnPart of its rate. Else a step or two would win back all
	// that a notification has cost, before the next one comes.
	dcqcnPart = 25
	// meterTime is for how long at least bytes are counted to know the rate at which a QP sends.
	meterTime = 100 * time.Microsecond
	// meterDecay is the part that remains, after each meterTime, of the largest count.
	meterDecay = 0.9
)

// dcqcn is a controller that sets a rate: a notification cuts it by alpha/2, where alpha says how steady congestion is. The
// rate returns to its former value in a few steps, and then grows slowly. Without a notification there is no limit. Cards
// begin at the rate of the line. A program is often slower, so here the first notification finds the rate at which the QP
// has lately sent.
//
// No peer notifies more often than once in NotifyInterval. Further notifications do not count.
//
// The timers are made for RTTs of some 50 µs. In an RTT of farRTT the rate would grow and fall many times before the network
// answers. There a notification narrows the window, and there is no rate.
type dcqcn struct {
	pace *pacer
	line float64
	grow float64     // dcqcnAdditive, or less on a slow line
	far  *congestion // the window of an RC QP, for long paths; nil: there is none

	limited         bool
	current, target float64
	alpha           float64
	alphaAt         time.Duration // when alpha falls
	stepAt          time.Duration // when the timer takes a step
	cutAt           time.Duration // the latest notification that counted
	bytes           int           // since the byte counter's latest step
	timed, counted  int           // steps since the latest notification

	meter      int // bytes since meterSince
	meterSince time.Duration
	metered    float64 // the rate at which the QP sends
}

func newDCQCN(p *pacer, line uint64) *dcqcn {
	d := &dcqcn{pace: p, line: float64(line)}
	if line == 0 {
		d.line = dcqcnLine
	}
	d.grow = min(dcqcnAdditive, d.line/dcqcnPart)
	return d
}

func (d *dcqcn) measured(time.Duration, time.Duration) {}

func (d *dcqcn) notified(now time.Duration) {
	if d.far != nil && d.far.minRTT >= farRTT {
		d.limited = false
		d.apply()
		d.far.notified(now)
		return
	}
	d.advance(now)
	switch {
	case !d.limited:
		d.limited, d.alpha = true, 1
		if d.current = d.line; d.metered > 0 {
			d.current = min(d.line, max(d.metered, dcqcnFloor))
		}
	case now-d.cutAt < NotifyInterval:
		return
	}
	d.cutAt = now
	d.target = d.current
	d.current = max(dcqcnFloor, d.current*(1-d.alpha/2))
	d.alpha = (1-dcqcnGain)*d.alpha + dcqcnGain
	d.alphaAt, d.stepAt = now+dcqcnTimer, now+dcqcnTimer
	d.bytes, d.timed, d.counted = 0, 0, 0
	d.pace.setRate(uint64(d.current))
}

func (d *dcqcn) sent(now time.Duration, n int) {
	if d.meter += n; now-d.meterSince >= meterTime {
		d.metered = max(float64(d.meter)/(now-d.meterSince).Seconds(), d.metered*meterDecay)
		d.meter, d.meterSince = 0, now
	}
	if !d.limited {
		return
	}
	if d.bytes += n; d.bytes >= dcqcnBytes {
		d.bytes -= dcqcnBytes
		d.counted++
		d.step()
	}
	d.advance(now)
	d.apply()
}

// advance does the steps of the timers that have come by now.
func (d *dcqcn) advance(now time.Duration) {
	if d.limited && d.alphaAt <= now {
		n := (now-d.alphaAt)/dcqcnTimer + 1
		d.alpha *= math.Pow(1-dcqcnGain, float64(n))
		d.alphaAt += n * dcqcnTimer
	}
	for d.limited && d.stepAt <= now {
		d.stepAt += dcqcnTimer
		d.timed++
		d.step()
	}
}

// step lets the rate grow: IBTA CA17-46.
func (d *dcqcn) step() {
	switch {
	case max(d.timed, d.counted) <= dcqcnRecovery:
	case min(d.timed, d.counted) > dcqcnRecovery:
		d.target += dcqcnHyper * d.grow * float64(min(d.timed, d.counted)-dcqcnRecovery)
	default:
		d.target += d.grow
	}
	d.target = min(d.target, d.line)
	d.current = (d.target + d.current) / 2
	if d.current >= d.line-d.grow {
		d.limited = false
	}
}

// apply sets the pace.
func (d *dcqcn) apply() {
	if !d.limited {
		d.pace.setRate(0)
		return
	}
	d.pace.setRate(uint64(d.current))
}

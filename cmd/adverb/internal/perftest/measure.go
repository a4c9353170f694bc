package perftest

import (
	"cmp"
	"context"
	"errors"
	"math/bits"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// sizes are the sizes of messages to measure.
func (t *tester) sizes() (list []int) {
	if !t.all {
		return []int{t.size}
	}
	largest := maxAllSize
	if t.qpType == verbs.QPTypeUD {
		largest = t.pathMTU.Bytes()
	}
	for i := 1; i < bits.Len(uint(largest)); i++ {
		list = append(list, 1<<i)
	}
	return list
}

// measure runs the tests.
func (t *tester) measure() (err error) {
	t.printHeading()
	defer t.watchLanes()()
	defer func() {
		if err == nil || errors.Is(err, errStarved) {
			err = cmp.Or(t.finishReport(), err)
		}
	}()
	if t.kind.latency {
		return t.measureLatency()
	}
	err = t.measureBandwidth()
	if t.endless && t.host == "" && errors.Is(context.Cause(t.ctx), errPeerGone) {
		t.inv.Printf(" Client closed connection\n") // which is how an endless run ends
		err = nil
	}
	return err
}

// watchLanes ends the test when the connection of a QP ends that need not have anything to flush: receives of an
// SRQ are not flushed, and who waits for credits may have no send under way.
func (t *tester) watchLanes() (stop func()) {
	quit := make(chan struct{})
	for i := range t.lanes {
		l := &t.lanes[i]
		if l.end == nil || t.sharedRQ == nil && t.credits == nil {
			continue
		}
		go func() {
			select {
			case <-quit:
				return
			case <-l.end.gone:
			}
			// The test itself may find out, and says more; the end of the exchange says less.
			pause := time.NewTimer(mourning / 2)
			defer pause.Stop()
			select {
			case <-quit:
			case <-pause.C:
				t.cancel(cmp.Or(l.qp.Err(), errPeerGone))
			}
		}()
	}
	return func() { close(quit) }
}

// sync waits until the peer has come to the same point.
func (t *tester) sync() error { return t.syncEnd(t.ends()[0]) }

var errOtherQP = errors.New("the peer speaks of other QPs than before: give both ends the same -q and -c, and run the same program")

// syncEnd is sync by a message about one of the QPs.
func (t *tester) syncEnd(e endPair) error {
	theirs, err := t.talk.swapDest(e.local)
	if err == nil && theirs.qpn != e.remote.qpn {
		err = errOtherQP
	}
	return err
}

// measureLatency is the course of the latency programs. With READ and atomics one end is passive.
func (t *tester) measureLatency() error {
	if t.kind.verb.oneSidedRead() && !t.sender {
		return nil
	}
	for _, size := range t.sizes() {
		x := t.newLatency(size)
		if t.kind.verb == verbSend {
			if err := t.postReceives(size); err != nil {
				return err
			}
			if err := t.sync(); err != nil {
				return err
			}
		}
		r, err := x.run(size)
		if err != nil {
			return err
		}
		if err := t.reportLatency(&r); err != nil {
			return err
		}
	}
	return nil
}

// measureBandwidth is the course of the bandwidth programs.
func (t *tester) measureBandwidth() error {
	if t.kind.verb == verbSend {
		return t.measureSends()
	}
	if !t.sender && !t.bidi {
		return t.standBy()
	}
	var own bwReport
	for _, size := range t.sizes() {
		b := t.newBandwidth(size)
		if t.warmUp {
			if err := b.warmUpLanes(); err != nil {
				return err
			}
		}
		if t.bidi {
			if err := t.sync(); err != nil {
				return err
			}
		}
		var err error
		if own, err = b.run(size); err != nil {
			return err
		}
		if t.bidi && t.all && t.kind.verb != verbAtomic {
			if err := t.sync(); err != nil {
				return err
			}
		}
		if err := t.reportBandwidth(&own, t.bidi); err != nil {
			return err
		}
	}
	if t.bidi {
		return nil
	}
	if err := t.sync(); err != nil {
		return err
	}
	_, err := t.talk.swapReport(&own)
	return err
}

// standBy is the part of the end that READs, WRITEs and atomics are done to.
func (t *tester) standBy() error {
	if err := t.sync(); err != nil {
		return err
	}
	theirs, err := t.talk.swapReport(&bwReport{})
	if err != nil {
		return err
	}
	return t.addRow(&theirs)
}

// measureSends is the course of send_bw.
func (t *tester) measureSends() error {
	for _, size := range t.sizes() {
		b := t.newBandwidth(size)
		if t.receives() {
			if err := t.postReceives(size); err != nil {
				return err
			}
		}
		if err := t.sync(); err != nil {
			return err
		}
		own, err := b.run(size)
		if errors.Is(err, errStarved) { // the received messages are known all the same
			return cmp.Or(t.addRow(&own), err)
		}
		if err != nil {
			return err
		}
		if err := t.reportBandwidth(&own, t.bidi && !t.byTime); err != nil {
			return err
		}
		if t.all {
			if err := t.sync(); err != nil {
				return err
			}
		}
	}
	return nil
}

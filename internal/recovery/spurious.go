package recovery

import "time"

// declaredLost is the latest ranges that were declared lost because others had overtaken them. If they arrive, the loss
// was spurious.
type declaredLost struct {
	ring *declaredRing // made with the first
}

type declaredRing struct {
	list [maxDeclared]declared
	next int

	before  undo // the window before the latest losses that have narrowed the window
	missing int  // how many of them have not proved to be spurious
}

// declared is the range [from, to).
type declared struct {
	from, to uint64
	expected time.Duration // when the packets should have arrived
	window   time.Duration // the reorder window that there was
	counted  bool          // the loss was counted as spurious
	narrowed bool          // the loss has narrowed the window, with others
}

// narrowed notes that the latest n losses have narrowed the window.
func (d *declaredRing) narrowed(before undo, n int) {
	for k := range d.list {
		d.list[k].narrowed = false
	}
	for k := range n {
		d.list[(d.next+maxDeclared-1-k)%maxDeclared].narrowed = true
	}
	d.before, d.missing = before, n
}

// takeBack notes that the loss x was spurious. It reports whether all losses that have narrowed the window were.
func (d *declaredRing) takeBack(x *declared) (all bool) {
	if !x.narrowed {
		return false
	}
	x.narrowed = false
	d.missing--
	return d.missing == 0
}

func (d *declaredLost) declare(from, to uint64, expected, window time.Duration) {
	if d.ring == nil {
		d.ring = new(declaredRing)
	}
	d.ring.add(declared{from: from, to: to, expected: expected, window: window})
}

func (d *declaredRing) add(x declared) {
	d.list[d.next] = x
	d.next = (d.next + 1) % maxDeclared
}

// latestDeclared returns the latest, or nil.
func (d *declaredLost) latestDeclared() *declared {
	if d.ring == nil {
		return nil
	}
	return &d.ring.list[(d.ring.next+maxDeclared-1)%maxDeclared]
}

// find returns the range that has packet seq, or nil.
func (d *declaredLost) find(seq uint64) *declared {
	if d.ring == nil {
		return nil
	}
	for k := range d.ring.list {
		if x := &d.ring.list[k]; x.from <= seq && seq < x.to {
			return x
		}
	}
	return nil
}

// count reports whether the loss was not yet counted as spurious.
func (x *declared) count() (first bool) {
	first, x.counted = !x.counted, true
	return first
}

// spuriousLoss notes that packet seq has arrived, which was declared lost. A peer that goes back answers more than once.
func (s *State) spuriousLoss(now time.Duration, seq uint64) {
	x := s.find(seq)
	if !s.sackPermitted && x == s.latestDeclared() {
		s.SpuriousRepeat(now, seq)
	}
	if x == nil || !s.sackPermitted {
		return
	}
	s.reorder.widen(now, now-x.expected, s.srtt)
	s.undoDeclared(x)
}

// SpuriousRepeat notes that packet seq has come twice. It reports whether a packet that was declared lost is the
// reason.
func (s *State) SpuriousRepeat(now time.Duration, seq uint64) bool {
	x := s.find(seq)
	if x == nil {
		return false
	}
	if x.count() { // a READ's answer is many packets
		s.reorder.widen(now, x.window+max(s.minRTT/4, 1), s.srtt)
	}
	s.undoDeclared(x)
	return true
}

// undoDeclared takes back the cost of the spurious loss x. A queue has narrowed the window for several losses at once. So
// the window is as wide as before when all of them have proved to be spurious.
func (s *State) undoDeclared(x *declared) {
	s.undoOne()
	if s.ring.takeBack(x) {
		s.undoLoss(s.ring.before)
	}
}

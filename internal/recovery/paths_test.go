package recovery

import (
	"testing"
	"time"
)

// pathRig is a State of four paths, with an RTT of 1 ms.
func pathRig(t *testing.T) (*State, *Paths) {
	t.Helper()
	r := newState(t)
	r.SetPaths(4)
	r.paths.Enable()
	r.update(ms)
	return r, r.paths
}

// TestPathWorse: a path that loses an eighth is left if another one loses less than half as much.
func TestPathWorse(t *testing.T) {
	for _, tt := range []struct {
		others uint32 // of lossScale
		left   bool
	}{
		{pathLossLimit, false},
		{pathLossLimit * 3 / 5, false},
		{pathLossLimit * 2 / 5, true},
	} {
		r, s := pathRig(t)
		for k := range s.n {
			s.paths[k].lost = tt.others
		}
		s.paths[1].lost = pathLossLimit - 1
		if s.missed(0, r.srtt, 1, 0, 1); s.paths[1].left != tt.left {
			t.Errorf("losing %d of %d where others lose %d: left %v, want %v", s.paths[1].lost, lossScale, tt.others, s.paths[1].left, tt.left)
		}
	}
}

// TestPathPause: a path that is left again and again is tried less and less often, but ten times a second at least.
// Once the path has carried many packets, its record is forgotten.
func TestPathPause(t *testing.T) {
	r, s := pathRig(t)
	p := &s.paths[1]
	p.pause = 0
	for _, want := range []time.Duration{8 * ms, 16 * ms, 32 * ms, 64 * ms, 100 * ms, 100 * ms} {
		if s.rest(ms, r.srtt, p); p.pause != want || p.probeAt != ms+want {
			t.Errorf("a pause of %v, and a try at %v; want %v and %v", p.pause, p.probeAt, want, ms+want)
		}
	}
	p.came = 0
	if s.arrived(2*ms, 1, ms, pathTrust, pathTrust); p.pause == 0 {
		t.Errorf("after %d packets the pauses are forgotten, want one packet more", pathTrust)
	}
	if s.arrived(2*ms, 1, ms, 1, pathTrust+1); p.pause != 0 {
		t.Errorf("after %d packets there is a pause of %v, want none", pathTrust+1, p.pause)
	}
}

// TestPathIdle: a path by which nothing has gone for 16 round trips is tried by a packet.
func TestPathIdle(t *testing.T) {
	r, s := pathRig(t)
	for k := range s.n {
		s.paths[k].latestAt, s.paths[k].probeAt, s.paths[k].share = us, time.Hour, 1
	}
	s.on = true
	s.request, s.run = 2, 1<<20
	s.choose(ms, r, 1, false)
	if got, want := s.paths[2].probeAt, time.Hour; got != want {
		t.Errorf("a path that is used is due to be tried at %v, want %v still", got, want)
	}
	s.paths[2].probeAt = 0
	s.choose(ms, r, 1, false)
	if got, want := s.paths[2].probeAt, ms+16*ms; got != want {
		t.Errorf("a path that was used is due to be tried at %v, want %v", got, want)
	}
	const due = ms + 16*ms
	if s.next(due-1, r); s.probes != 0 {
		t.Error("a path is tried early")
	}
	if s.next(due, r); s.probes != 1 || s.request != 2 || s.run != 1 {
		t.Errorf("%d tries, the latest by path %d with %d bytes; want 1 by path 2 with a packet", s.probes, s.request, s.run)
	}
}

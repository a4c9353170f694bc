//go:build !adverb_portable

package host

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/handover/handovertest"
)

// outletTest is two devices of this process, and the mailboxes of many others.
type outletTest struct {
	t       *testing.T
	devices [2]*owners
	boxes   []*mailbox
	files   int // open before the devices looked for anybody
}

func newOutletTest(t *testing.T, boxes int) *outletTest {
	t.Helper()
	pool := newOutletPool()
	ot := &outletTest{t: t, devices: [2]*owners{newOwners(1, pool), newOwners(2, pool)}}
	for i := range boxes {
		m, err := openMailbox(serviceName(testAddr(40), uint64(i)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.close)
		ot.boxes = append(ot.boxes, m)
	}
	for _, o := range ot.devices {
		t.Cleanup(o.close)
	}
	ot.files = handovertest.OpenFiles(t)
	return ot
}

// reach has a device look for the owner of a mailbox. It fails the test if the device does not find it.
func (ot *outletTest) reach(o *owners, i int) {
	ot.t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lookups = [boxKinds]int{} // as if time had passed
	if w := o.find(ot.boxes[i].name); w == nil || w.out == nil {
		ot.t.Fatalf("the owner of mailbox %d is not found, want it found", i)
	}
}

// count returns how many outlets the devices have. It fails the test if that is not what was counted
// or if they are too many.
func (ot *outletTest) count() (n int) {
	ot.t.Helper()
	for _, o := range ot.devices {
		o.mu.Lock()
		n += o.outlets
		o.mu.Unlock()
	}
	if open := handovertest.OpenFiles(ot.t) - ot.files; int(ot.devices[0].pool.open.Load()) != n || open != n || n > maxOutlets {
		ot.t.Errorf("the devices have %d outlets, counted %d, and %d files are open; want the same, and at most %d", n, ot.devices[0].pool.open.Load(), open, maxOutlets)
	}
	return n
}

// Where a process may have few descriptors its outlets take few of them.
func TestOutletsFew(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	for most, want := range map[uint64]int32{4: 1, 256: 16, limit.Max: int32(min(maxOutlets, limit.Max/outletPart))} {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: limit.Max}); err != nil {
			t.Fatal(err)
		}
		if n := outletLimit(); n != want {
			t.Errorf("of %d descriptors outlets may take %d, want %d", most, n, want)
		}
	}
}

// All devices of a process together have a bounded number of outlets, and each of them gets one.
func TestOutletsOfAllDevices(t *testing.T) {
	ot := newOutletTest(t, 2*maxOutlets)
	for i := range ot.boxes {
		ot.reach(ot.devices[0], i)
		ot.count()
	}
	if n := ot.count(); n != maxOutlets {
		t.Errorf("%d outlets after %d owners, want %d", n, len(ot.boxes), maxOutlets)
	}
	ot.reach(ot.devices[1], 0) // the other device has none, and takes the first one's place
	for i := range ot.boxes {
		ot.reach(ot.devices[i%2], i)
		ot.count()
	}
	for _, o := range ot.devices {
		if o.outlets == 0 {
			t.Error("a device has no outlet")
		}
	}
}

// Outlets that are not used are closed, whether their owners live or not.
func TestOutletsIdle(t *testing.T) {
	ot := newOutletTest(t, 10)
	o := ot.devices[0]
	for i := range ot.boxes {
		ot.reach(o, i)
	}
	for _, m := range ot.boxes[5:] {
		m.close()
		ot.files-- // a mailbox that is closed
	}
	sweep := func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.sweeper == nil {
			t.Error("there are outlets, and no sweep is to come")
		}
		o.sweep()
	}
	sweep()
	if n := ot.count(); n != 10 {
		t.Errorf("%d outlets after a sweep, want those 10 that were used before it", n)
	}
	ot.reach(o, 3)
	sweep()
	if n := ot.count(); n != 1 {
		t.Errorf("%d outlets after the second sweep, want the one that was used since the first", n)
	}
	ot.reach(o, 4) // whose outlet was closed
	o.mu.Lock()
	for b := range uint32(maxLookups / 2) { // somebody makes up blocks
		o.find(blockName(0xf00 + b))
	}
	o.mu.Unlock()
	sweep()
	sweep()
	o.mu.Lock()
	if n := len(o.byName); n != 0 {
		t.Errorf("%d names are remembered, want none", n)
	}
	o.mu.Unlock()
	o.sweepAgain()
	if n := ot.count(); n != 0 || o.sweeper != nil {
		t.Errorf("%d outlets, want none; another sweep is to come: %v", n, o.sweeper != nil)
	}
}

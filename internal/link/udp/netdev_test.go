package udp

import (
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
)

// failInterfaces has the next n lists of the network interfaces fail, as where the process has no descriptor to spare.
func failInterfaces(t *testing.T, n int) {
	was := interfaces
	t.Cleanup(func() { interfaces = was })
	interfaces = func() ([]net.Interface, error) {
		if n--; n >= 0 {
			return nil, syscall.EMFILE
		}
		return was()
	}
}

// TestInterfaceNotListed: a network interface is gone only if the system says so. A device never comes back from that.
func TestInterfaceNotListed(t *testing.T) {
	name := someInterface(t)
	d := newNetdev(name, netip.Addr{})
	failInterfaces(t, 1)
	if _, err := d.State(); !errors.Is(err, syscall.EMFILE) || errors.Is(err, link.ErrNoNetdev) {
		t.Errorf("the state of %s when the system lists no interfaces once: %v, want %v", name, err, syscall.EMFILE)
	}
	if _, err := d.State(); err != nil {
		t.Errorf("the state of %s afterwards: %v, want none", name, err)
	}
	if _, err := newNetdev("no-such-interface", netip.Addr{}).State(); !errors.Is(err, link.ErrNoNetdev) {
		t.Errorf("the state of an interface that does not exist: %v, want %v", err, link.ErrNoNetdev)
	}
}

// TestStateLookAgain: a state that could not be read is one to look at again. The system reports no change then, so a
// device would have a port that is down for good.
func TestStateLookAgain(t *testing.T) {
	name := someInterface(t)
	synctest.Test(t, func(t *testing.T) {
		d := newNetdev(name, netip.Addr{})
		d.stop = func() {} // a watch that has nothing to report
		failInterfaces(t, 3)
		start := time.Now()
		for range 2 {
			if _, err := d.State(); err == nil {
				t.Fatalf("the state of %s was read, want none", name)
			}
		}
		for range 2 { // of which the first fails
			<-d.changed
			d.State()
		}
		if took := time.Since(start); took != 2*pollInterval {
			t.Errorf("the second look is %v after the first failure, want %v", took, 2*pollInterval)
		}
		time.Sleep(10 * pollInterval)
		select {
		case <-d.changed:
			t.Error("another look is due, want none after one that succeeded")
		default:
		}
		failInterfaces(t, 1)
		d.State()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * pollInterval) // nothing is sent to a channel that is closed
	})
	d := newNetdev(name, netip.Addr{})
	failInterfaces(t, 1)
	if d.State(); d.again != nil {
		t.Error("a look is due where nobody watches, want none")
	}
}

// TestPollMissesNothing: a change between the watcher's last look and the first look of a poll is reported too. The
// kernel's reports may have ended before that.
func TestPollMissesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w hostWatch
		var told atomic.Int32
		w.subs = []*subscriber{{func() { told.Add(1) }}}
		done := make(chan struct{})
		go w.poll(pollInterval, done)
		synctest.Wait()
		if n := told.Load(); n != 1 {
			t.Errorf("a poll that begins tells %d times that it is time to look, want once", n)
		}
		time.Sleep(10*pollInterval + 1)
		synctest.Wait()
		if n := told.Load(); n != 11 {
			t.Errorf("after 10 intervals it has told %d times, want 11", n)
		}
		close(done)
	})
}

// TestWatchIsShared: one watch of the host serves all callers of Watch. It ends with the last of them, and a stopped
// one is called no more.
func TestWatchIsShared(t *testing.T) {
	var w hostWatch
	var told [2]int
	var stops [2]func()
	begin := func() {
		for i := range stops {
			stops[i] = w.add(func() {})
			w.subs[i].changed = func() { told[i]++ }
		}
	}
	// The host's own changes would come in between: only this test's calls of tell count.
	w.ending = func() {}
	begin()
	w.tell()
	stops[0]()
	stops[0]() // a second stop does nothing
	w.tell()
	if told != [2]int{1, 2} {
		t.Errorf("told %v times, want [1 2]", told)
	}
	if w.ending == nil {
		t.Error("the watch has ended, want it as long as somebody has not stopped")
	}
	stops[1]()
	w.tell()
	if told != [2]int{1, 2} || w.ending != nil {
		t.Errorf("told %v times after all have stopped, want [1 2]; the watch goes on: %v", told, w.ending != nil)
	}
}

// someInterface returns the name of a network interface.
func someInterface(t *testing.T) string {
	all, err := net.Interfaces()
	if err != nil || len(all) == 0 {
		t.Skipf("no network interface: %v", err)
	}
	return all[0].Name
}

package tooltest

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/internal/watch"
)

// Exclusive makes the test wait until no other test of the tool has the name. Packages are tested at the same time. A
// test whose processes share soft_lo, and send packets that nobody repeats, must have the device to itself.
func Exclusive(t *testing.T, name string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(os.TempDir(), "adverb-test-"+name+".lock"), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() }) // which ends the lock
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
}

// AwaitListening waits until a process listens on a device by the connection manager. Some programs say
// that they start, and nothing more until there is a client; a client that comes too early fails.
func (s *Started) AwaitListening(ctx context.Context, t *testing.T, device string) {
	t.Helper()
	for {
		answers, silent, err := watch.Ask(ctx, watch.WantRes)
		select {
		case r := <-s.Done:
			t.Fatalf("the program that was to listen on %s has ended: %+v", device, r)
		default:
		}
		if err != nil {
			t.Fatalf("no program listens on %s: %v; got answers %+v, and silence of %v", device, err, answers, silent)
		}
		for i := range answers {
			if p := &answers[i]; p.PID == s.PID && slices.ContainsFunc(p.Devices, func(d watch.Device) bool {
				return d.Name == device && slices.ContainsFunc(d.CMID, func(id watch.CMID) bool { return id.State == "LISTEN" })
			}) {
				return
			}
		}
	}
}

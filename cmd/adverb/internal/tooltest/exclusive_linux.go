package tooltest

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Exclusive makes the test wait until no other test of the tool has the name. Packages are tested at
// the same time. A test whose processes share soft_lo, and send what nobody repeats, must have the
// device to itself.
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

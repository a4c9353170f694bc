package handovertest

import (
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Patience is how long Await waits.
const Patience = 20 * time.Second

// Pair returns the two ends of a connection by which descriptors are handed over.
func Pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "unix pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
		t.Cleanup(func() { c.Close() })
	}
	return ends[0], ends[1]
}

// Memory returns a memfd of a size with seals. /proc/self/maps calls it adverb-test.
func Memory(t *testing.T, size int64, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("adverb-test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Skipf("memfd_create: %v", err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return fd
}

// OpenFiles returns how many descriptors this process has open.
func OpenFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	return len(files)
}

// Await waits until f holds.
func Await(t *testing.T, what string, f func() bool) {
	t.Helper()
	for limit := time.Now().Add(Patience); !f(); runtime.Gosched() {
		if time.Now().After(limit) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

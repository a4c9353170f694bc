//go:build !adverb_portable

package handover

import (
	"bytes"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/handover/handovertest"
)

// TestAcceptGoesOn: for want of descriptors nobody is accepted for a while, and then again.
func TestAcceptGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		results := []error{unix.EMFILE, unix.ENFILE, nil, unix.ECONNABORTED, nil, net.ErrClosed}
		taken, start := 0, time.Now()
		acceptEach(func() (*net.UnixConn, error) {
			err := results[0]
			results = results[1:]
			return nil, err
		}, func(*net.UnixConn) { taken++ })
		if took := time.Since(start); taken != 2 || took != 3*acceptAgain {
			t.Errorf("%d taken in %v, want 2, and %v after each of 3 errors", taken, took, acceptAgain)
		}
	})
}

// TestFilesCutShort: of the files of a message for which there are too few descriptors none stays open.
func TestFilesCutShort(t *testing.T) {
	a, b := handovertest.Pair(t)
	file, err := unix.Dup(0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(file)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	for spare := range MaxDescriptors {
		if err := Send(a, []byte{7, 8, 9}, file, file); err != nil {
			t.Fatal(err)
		}
		before := handovertest.OpenFiles(t)
		var top int // with a limit of top+1 there are so many to spare
		var held []int
		for range spare + 1 {
			fd, err := unix.FcntlInt(uintptr(file), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			held, top = append(held, fd), fd
		}
		CloseAll(held)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(top), Max: was.Max}); err != nil {
			t.Fatal(err)
		}
		got, fds, err := Receive(b, 3)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(err, ErrNoDescriptor) || !bytes.Equal(got, []byte{7, 8, 9}) || len(fds) != 0 {
			t.Errorf("%d to spare: got % x, descriptors %v, %v; want the message, none and %v", spare, got, fds, err, ErrNoDescriptor)
		}
		if after := handovertest.OpenFiles(t); after != before {
			t.Errorf("%d to spare: %d files are open, want %d as before", spare, after, before)
		}
	}
}

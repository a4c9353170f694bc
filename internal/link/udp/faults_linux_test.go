//go:build !adverb_portable

package udp

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
)

// sendFaults are the errors that a host answers a send with although the link is in order: a queue
// is full, a firewall forbids it, an earlier datagram was refused, the interface's MTU has shrunk, there
// is no route, the address or the interface has gone, memory is short.
var sendFaults = []syscall.Errno{
	unix.ENOBUFS, unix.EPERM, unix.EACCES, unix.ECONNREFUSED, unix.EMSGSIZE, unix.ENETUNREACH, unix.EHOSTUNREACH,
	unix.ENETDOWN, unix.ENODEV, unix.EADDRNOTAVAIL, unix.ENOMEM, unix.EINVAL, unix.EIO, unix.EAGAIN,
}

// While the host refuses to send, each datagram is lost and counted by itself, with the error. Afterwards
// the link sends as before, trains included.
func TestSendFaults(t *testing.T) {
	a, b := openTrains(t, "127.0.93.11", "127.0.93.12")
	const size = 100
	train := link.Datagram{Src: a.Source(1), Dst: b.Addr(), Payload: bytes.Repeat([]byte{7}, 4*size), SegmentSize: size}
	single := link.Datagram{Src: a.Source(1), Dst: b.Addr(), Payload: []byte("single")}
	for _, fault := range sendFaults {
		t.Run(unix.ErrnoName(fault), func(t *testing.T) {
			before := a.Stats()
			var err error
			if none := linktest.SendFails(fault, func() {
				err = errors.Join(a.Send([]link.Datagram{single}), a.Send([]link.Datagram{train, single, single}))
			}); none != nil {
				t.Skipf("no seccomp: %v", none)
			}
			if err != nil {
				t.Fatalf("Send: %v, want no error: the datagrams are lost", err)
			}
			s := a.Stats()
			if lost := s.SendErrors - before.SendErrors; lost != 7 || s.Sent != before.Sent || !errors.Is(s.LastSendError, fault) {
				t.Errorf("%d lost, %d sent, the latest for %v; want 7 lost for %v", lost, s.Sent-before.Sent, s.LastSendError, fault)
			}
			if n := a.MaxTrain(); n != maxTrain {
				t.Errorf("MaxTrain = %d, want %d: not the train was at fault", n, maxTrain)
			}
			if err := a.Send([]link.Datagram{train, single}); err != nil {
				t.Fatal(err)
			}
			for got := 0; got < 5; {
				for _, d := range receiveSome(t, b) {
					got += d.Segments()
				}
			}
			if after := a.Stats(); after.SendErrors != s.SendErrors || after.Sent-s.Sent != 5 {
				t.Errorf("afterwards %d lost, %d sent, want 0 and 5", after.SendErrors-s.SendErrors, after.Sent-s.Sent)
			}
		})
	}
}

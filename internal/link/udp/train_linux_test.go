//go:build !adverb_portable

package udp

import (
	"bytes"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link"
)

// receiveSome returns what one Recv finds.
func receiveSome(t *testing.T, l *Link) []link.Datagram {
	t.Helper()
	batch := make([]link.Datagram, maxBatch)
	for {
		n, err := l.Recv(batch)
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			return batch[:n]
		}
		if err := l.Wait(-1); err != nil {
			t.Fatal(err)
		}
	}
}

// openTrains is two links that send trains.
func openTrains(t *testing.T, addrs ...string) (a, b *Link) {
	t.Helper()
	links := make([]*Link, len(addrs))
	for i, addr := range addrs {
		l, err := newLink(netip.MustParseAddr(addr), 1, false)
		if err != nil {
			t.Skipf("no link on %s: %v", addr, err)
		}
		t.Cleanup(func() { l.Close() })
		if l.MaxTrain() == 1 {
			t.Skip("this kernel cuts no trains")
		}
		links[i] = l
	}
	return links[0], links[1]
}

// Over loopback a train is never cut: it arrives as it was sent, and its datagrams count one by one.
func TestTrainWhole(t *testing.T) {
	a, b := openTrains(t, "127.0.93.1", "127.0.93.2")
	const size = 1040
	for _, n := range []int{2, 17, 62} {
		before := b.Stats()
		want := bytes.Repeat([]byte{byte(n)}, n*size-20)
		for _, class := range []uint8{0, 0x20} { // a control message more
			if err := a.Send([]link.Datagram{{Src: a.Source(1), Dst: b.Addr(), Payload: want, SegmentSize: size, TrafficClass: class}}); err != nil {
				t.Fatal(err)
			}
			got := receiveSome(t, b)
			if len(got) > 1 && got[0].SegmentSize == 0 {
				t.Skip("the loopback interface cuts trains: its tx-udp-segmentation is off")
			}
			if len(got) != 1 || got[0].SegmentSize != size || !bytes.Equal(got[0].Payload, want) {
				t.Fatalf("a train of %d arrives in %d parts, the first %d bytes with segments of %d", n, len(got), len(got[0].Payload), got[0].SegmentSize)
			}
			if got[0].TrafficClass != class {
				t.Errorf("its traffic class is %#02x, want %#02x", got[0].TrafficClass, class)
			}
		}
		if s := b.Stats(); s.Received-before.Received != uint64(2*n) || s.ReceivedBytes-before.ReceivedBytes != uint64(2*len(want)) {
			t.Errorf("two trains of %d datagrams, %d bytes: received counts %+v after %+v", n, len(want), s, before)
		}
	}
	if s := a.Stats(); s.Sent != 2*(2+17+62) {
		t.Errorf("sent counts %d datagrams, want %d", s.Sent, 2*(2+17+62))
	}
}

// A train of what is longer than any RoCEv2 datagram is dropped as these are.
func TestTrainOversized(t *testing.T) {
	a, b := openTrains(t, "127.0.93.3", "127.0.93.4")
	const long = maxReceive + 4
	batch := []link.Datagram{
		{Src: a.Source(1), Dst: b.Addr(), Payload: make([]byte, 3*long), SegmentSize: long},
		{Src: a.Source(1), Dst: b.Addr(), Payload: []byte("fits")},
	}
	if err := a.Send(batch); err != nil {
		t.Fatal(err)
	}
	if got := receiveSome(t, b); len(got) != 1 || string(got[0].Payload) != "fits" {
		t.Fatalf("%d datagrams arrive, the first of %d bytes", len(got), len(got[0].Payload))
	}
	if s := b.Stats(); s.ReceiveDrops != 3 || s.Received != 1 {
		t.Errorf("%+v, want 3 receive drops, 1 received", s)
	}
}

// Where trains turn out not to work, single datagrams do.
func TestTrainsGivenUp(t *testing.T) {
	a, b := openTrains(t, "127.0.93.5", "127.0.93.6")
	for errno, want := range map[syscall.Errno]bool{0: false, unix.EIO: true, unix.EINVAL: true, unix.EMSGSIZE: false, unix.EAGAIN: false} {
		if got := endsTrains(errno, 2); got != want || endsTrains(errno, 1) {
			t.Errorf("%v: ends trains %v for a train, %v for a single datagram; want %v and false", errno, got, endsTrains(errno, 1), want)
		}
	}
	a.trains.Store(false)
	if n := a.MaxTrain(); n != 1 {
		t.Errorf("MaxTrain = %d, want 1", n)
	}
	train := link.Datagram{Src: a.Source(1), Dst: b.Addr(), Payload: make([]byte, 200), SegmentSize: 100}
	single := link.Datagram{Src: a.Source(1), Dst: b.Addr(), Payload: make([]byte, 100), SegmentSize: 100}
	if err := a.Send([]link.Datagram{train, single}); err != nil {
		t.Fatal(err)
	}
	if got := receiveSome(t, b); len(got) != 1 || len(got[0].Payload) != 100 {
		t.Errorf("%d datagrams arrive, the first of %d bytes", len(got), len(got[0].Payload))
	}
	if s := a.Stats(); s.SendErrors != 2 || s.Sent != 1 {
		t.Errorf("%+v, want 2 lost, 1 sent", s)
	}
}

// What a datagram's traffic class was is told, over both families.
func TestTrafficClass(t *testing.T) {
	for _, addrs := range [][2]string{{"127.0.93.7", "127.0.93.8"}, {"::1", "::1"}} {
		a, err := newLink(netip.MustParseAddr(addrs[0]), 1, false)
		if err != nil {
			t.Logf("no link on %s: %v", addrs[0], err)
			continue
		}
		defer a.Close()
		b := a
		if addrs[1] != addrs[0] {
			if b, err = newLink(netip.MustParseAddr(addrs[1]), 1, false); err != nil {
				t.Fatal(err)
			}
			defer b.Close()
		}
		for _, class := range []uint8{0x20, 0, 0xff, 0x69} {
			if err := a.Send([]link.Datagram{{Src: a.Source(1), Dst: b.Addr(), Payload: make([]byte, 64), TrafficClass: class}}); err != nil {
				t.Fatal(err)
			}
			if got := receiveSome(t, b)[0].TrafficClass; got != class {
				t.Errorf("to %s: traffic class %#02x, want %#02x", addrs[1], got, class)
			}
		}
	}
}

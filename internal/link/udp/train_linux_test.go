//go:build !adverb_portable

package udp

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
)

// receiveSome returns the datagrams of the first Recv that finds any.
func receiveSome(t *testing.T, l *Link) []link.Datagram {
	t.Helper()
	batch := make([]link.Datagram, maxBatch)
	const patience = 10 * time.Second
	for deadline := time.Now().Add(patience); ; {
		n, err := l.Recv(batch)
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			return batch[:n]
		}
		if time.Now().After(deadline) {
			t.Fatalf("nothing arrived within %v; stats %+v", patience, l.Stats())
		}
		if err := l.Wait(patience); err != nil {
			t.Fatal(err)
		}
	}
}

// openTrains returns two links that send trains.
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

// TestReceiveAsks: where datagrams come one by one, a call asks for one, and so finds no more than one if more have
// come by then. After two in a row the next call asks for all.
func TestReceiveAsks(t *testing.T) {
	a, b := openTrains(t, "127.0.0.1", "127.0.0.2")
	batch := make([]link.Datagram, maxBatch)
	size := 0
	for i, step := range []struct {
		sent int
		got  []int // by one call after another
	}{
		{0, []int{0}},
		{1, []int{1, 0}},
		{3, []int{1, 1, 1}}, // the one before was not in a row with these
		{4, []int{1, 1, 2}},
		{3, []int{3}}, // as many came before
		{1, []int{1, 0}},
		{2, []int{1, 1}},
		{3, []int{3}},
		{0, []int{0}},
		{2, []int{1, 1}},
	} {
		for range step.sent {
			size += 4 // so that nobody joins them to a train
			d := link.Datagram{Src: a.Source(1), Dst: b.Addr(), Payload: make([]byte, size)}
			if err := a.Send([]link.Datagram{d}); err != nil {
				t.Fatal(err)
			}
		}
		for _, want := range step.got {
			n, err := b.Recv(batch)
			if err != nil || n != want {
				t.Fatalf("step %d: Recv returned %d and %v, want %d", i, n, err, want)
			}
		}
	}
}

// TestReceiveBytes: of long trains one call takes no more than stays in the near cache, and of short datagrams many.
// The lengths of the datagrams in the call before decide.
func TestReceiveBytes(t *testing.T) {
	a, b := openTrains(t, "127.0.93.5", "127.0.93.6")
	if n, err := unix.GetsockoptInt(b.rx.own.fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err != nil || n < 4*receiveBytes {
		t.Skipf("the receive buffer has %d bytes (%v), want %d: raise net.core.rmem_max", n, err, 4*receiveBytes)
	}
	const segment, long = 4000, 15 * 4000
	const few = receiveBytes / long
	batch := make([]link.Datagram, maxBatch)
	for i, step := range []struct {
		sent, length, segment int
		got                   []int // by one call after another
	}{
		{few + 2, long, segment, []int{few + 2}}, // the datagrams before were short
		{few + 2, long, segment, []int{few, 2}},
		{few + receiveSlots, 64, 0, []int{few, receiveSlots}},
		{few + 1, long, segment, []int{few + 1}},
		{few + 1, long, segment, []int{few}},
	} {
		for k := range step.sent {
			d := link.Datagram{Src: a.Source(1), Dst: b.Addr(), Payload: make([]byte, step.length+4*k), SegmentSize: step.segment} // of different lengths, so that nobody joins them
			if step.segment > 0 {
				d.Payload = d.Payload[:step.length]
			}
			if err := a.Send([]link.Datagram{d}); err != nil {
				t.Fatal(err)
			}
		}
		for _, want := range step.got {
			n, err := b.Recv(batch)
			if n > 0 && batch[0].SegmentSize != step.segment {
				t.Skip("the loopback interface cuts trains: its tx-udp-segmentation is off")
			}
			if err != nil || n != want {
				t.Fatalf("step %d: Recv returned %d and %v, want %d", i, n, err, want)
			}
		}
	}
}

// A Wake ends one Wait. If it ended the next ones too, their caller would never sleep again.
func TestWakeOnce(t *testing.T) {
	l, err := newLink(netip.MustParseAddr("127.94.7.1"), 1, false)
	if err != nil {
		t.Skipf("no link: %v", err)
	}
	defer l.Close()
	w := &l.arrival
	for _, woken := range []bool{true, false} {
		if sleeps, err := w.begin(-1); err != nil || !sleeps {
			t.Fatalf("got that Wait sleeps: %v, error %v, want that it does", sleeps, err)
		}
		if woken {
			l.Wake()
		} else if err := l.Send([]link.Datagram{{Src: l.Source(1), Dst: l.Addr(), Payload: make([]byte, 64)}}); err != nil {
			t.Fatal(err)
		}
		if err := w.set.Await(w.ready); (err != nil) != woken {
			t.Errorf("woken: %v; got that Wait ends by %v, want an error if it was woken, and else that a datagram has come", woken, err)
		}
		if err := w.end(); err != nil {
			t.Error(err)
		}
	}
}

// Over loopback a train is never cut. It arrives as it was sent, and its datagrams count one by one.
func TestTrainWhole(t *testing.T) {
	a, b := openTrains(t, "127.0.93.1", "127.0.93.2")
	const size = 1040
	for _, n := range []int{2, 17, 62} {
		before := b.Stats()
		want := bytes.Repeat([]byte{byte(n)}, n*size-20)
		for _, class := range []uint8{0, 0x20} { // a class other than 0 takes another control message
			if err := a.Send([]link.Datagram{{Src: a.Source(1), Dst: b.Addr(), Payload: want, SegmentSize: size, TrafficClass: class}}); err != nil {
				t.Fatal(err)
			}
			got := receiveSome(t, b)
			if len(got) > 1 && got[0].SegmentSize == 0 {
				t.Skip("the loopback interface cuts trains: its tx-udp-segmentation is off")
			}
			if len(got) != 1 || got[0].SegmentSize != size || !bytes.Equal(got[0].Payload, want) {
				t.Fatalf("a train of %d arrives in %d parts, the first of %d bytes with segments of %d; want one of %d with segments of %d",
					n, len(got), len(got[0].Payload), got[0].SegmentSize, len(want), size)
			}
			if got[0].TrafficClass != class {
				t.Errorf("its traffic class is %#02x, want %#02x", got[0].TrafficClass, class)
			}
		}
		if s := b.Stats(); s.Received-before.Received != uint64(2*n) || s.ReceivedBytes-before.ReceivedBytes != uint64(2*len(want)) {
			t.Errorf("two trains of %d datagrams, %d bytes: received counts %+v after %+v, want two such trains more", n, len(want), s, before)
		}
	}
	if s := a.Stats(); s.Sent != 2*(2+17+62) {
		t.Errorf("sent counts %d datagrams, want %d", s.Sent, 2*(2+17+62))
	}
}

// A train whose datagrams are longer than any of RoCEv2 is dropped, as single ones of that length
// are.
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
		t.Fatalf("%d datagrams arrive, the first of %d bytes; want the one that fits", len(got), len(got[0].Payload))
	}
	if s := b.Stats(); s.ReceiveDrops != 3 || s.Received != 1 {
		t.Errorf("%+v, want 3 receive drops, 1 received", s)
	}
}

// When trains turn out not to work, single datagrams go on working, and trains are tried again
// later.
func TestTrainsSuspended(t *testing.T) {
	a, b := openTrains(t, "127.0.93.5", "127.0.93.6")
	// For a socket that sends no checksums, the kernel cuts no trains. The error is EINVAL.
	noChecksums := func(on int) {
		for i := range a.tx {
			if err := unix.SetsockoptInt(a.tx[i].fd, unix.SOL_SOCKET, unix.SO_NO_CHECK, on); err != nil {
				t.Fatal(err)
			}
		}
	}
	const size = 100
	train := link.Datagram{Src: a.Source(1), Dst: b.Addr(), Payload: bytes.Repeat([]byte("train"), 3*size/5), SegmentSize: size, TrafficClass: 0x20}
	single := link.Datagram{Src: a.Source(1), Dst: b.Addr(), Payload: []byte("single"), SegmentSize: size}
	sendBoth := func() {
		t.Helper()
		if err := a.Send([]link.Datagram{train, single}); err != nil {
			t.Fatal(err)
		}
	}

	noChecksums(1)
	sendBoth()
	got := receiveSome(t, b)
	if len(got) != 2 || !bytes.Equal(got[0].Payload, train.Segment(0)) || string(got[1].Payload) != "single" {
		t.Errorf("with a train that the kernel refuses, %d datagrams arrive, the first %q; want its first and the one behind it", len(got), got[0].Payload)
	} else if got[0].TrafficClass != train.TrafficClass {
		t.Errorf("the first datagram's traffic class is %#02x, want %#02x", got[0].TrafficClass, train.TrafficClass)
	}
	if s := a.Stats(); s.SendErrors != 2 || s.Sent != 2 || s.SentBytes != size+6 || !errors.Is(s.LastSendError, unix.EINVAL) {
		t.Errorf("stats %+v, want 2 lost for EINVAL, 2 sent with %d bytes", s, size+6)
	}
	if n := a.MaxTrain(); n != 1 {
		t.Errorf("MaxTrain = %d after trains were refused, want 1", n)
	}

	noChecksums(0)
	sendBoth() // by a caller who has not looked at MaxTrain
	if got := receiveSome(t, b); len(got) != 1 || string(got[0].Payload) != "single" {
		t.Errorf("while there are no trains, %d datagrams arrive, the first %q; want the single one", len(got), got[0].Payload)
	}
	if s := a.Stats(); s.SendErrors != 2+3 {
		t.Errorf("SendErrors = %d, want %d", s.SendErrors, 2+3)
	}

	a.trains.resume()
	if n := a.MaxTrain(); n != maxTrain {
		t.Errorf("MaxTrain = %d once the pause is over, want %d", n, maxTrain)
	}
	sendBoth()
	if got := receiveSome(t, b); !bytes.Equal(got[0].Segment(0), train.Segment(0)) {
		t.Errorf("once the pause is over, %q arrives first, want the train", got[0].Payload)
	}
	if s := a.Stats(); s.SendErrors != 2+3 {
		t.Errorf("SendErrors = %d once trains work again, want still %d", s.SendErrors, 2+3)
	}
}

// Trains are tried again after a pause. The pause grows only if they fail again.
func TestTrainPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s pauser
		s.on.Store(true)
		pause := func() time.Duration {
			start := time.Now()
			for s.suspend(); !s.on.Load(); {
				s.suspend() // has no effect while trains are suspended
				time.Sleep(pauseMin / 2)
				synctest.Wait()
				if d := time.Since(start); d > 2*pauseMax {
					t.Fatalf("trains are not tried again for %v, want it within %v", d, 2*pauseMax)
				}
			}
			return time.Since(start)
		}
		for i, want := range []time.Duration{1, 4, 16, 64, 256, 300, 300} {
			if got := pause(); got != want*time.Second {
				t.Errorf("pause %d takes %v, want %v", i, got, want*time.Second)
			}
		}
		time.Sleep(pauseMax)
		if got := pause(); got != pauseMin {
			t.Errorf("the pause after trains have worked for long takes %v, want %v", got, pauseMin)
		}
		s.suspend()
		s.close()
		time.Sleep(2 * pauseMax)
		if s.on.Load() {
			t.Error("trains are resumed after close")
		}
	})
}

// A blackhole route refuses everything with EINVAL, which may also mean that trains do not work.
// When the route is gone, trains go on.
func TestTrainsOutliveBlackhole(t *testing.T) {
	linktest.OwnNetwork(t)
	if err := linktest.LoopbackUp(); err != nil {
		t.Fatal(err)
	}
	a, b := openTrains(t, "127.0.93.9", "127.0.93.10")
	const size = 1000
	train := link.Datagram{Src: a.Source(1), Dst: b.Addr(), Payload: make([]byte, 5*size), SegmentSize: size}
	for round, want := range []struct {
		blackhole bool
		lost      uint64 // so far
	}{{false, 0}, {true, 5}, {false, 5}} {
		if round > 0 {
			setBlackhole(t, b.Addr().Addr(), want.blackhole)
		}
		if err := a.Send([]link.Datagram{train}); err != nil {
			t.Fatal(err)
		}
		if s := a.Stats(); s.SendErrors != want.lost || want.blackhole && !errors.Is(s.LastSendError, unix.EINVAL) {
			t.Errorf("round %d: %d lost, for %v; want %d for EINVAL", round, s.SendErrors, s.LastSendError, want.lost)
		}
		if n := a.MaxTrain(); n != maxTrain {
			t.Fatalf("round %d: MaxTrain = %d, want %d", round, n, maxTrain)
		}
		if want.blackhole {
			continue
		}
		if got := receiveSome(t, b); len(got) != 1 || got[0].Segments() != 5 {
			t.Errorf("round %d: %d datagrams arrive, the first of %d segments, want a train of 5", round, len(got), got[0].Segments())
		}
	}
}

// setBlackhole adds or removes a blackhole route to an IPv4 address, in the table that the kernel
// looks at first.
func setBlackhole(t *testing.T, addr netip.Addr, on bool) {
	t.Helper()
	c, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ae := netlink.NewAttributeEncoder()
	ae.Bytes(unix.RTA_DST, addr.AsSlice())
	attrs, err := ae.Encode()
	if err != nil {
		t.Fatal(err)
	}
	route := []byte{unix.AF_INET, 32, 0, 0, unix.RT_TABLE_LOCAL, unix.RTPROT_STATIC, unix.RT_SCOPE_UNIVERSE, unix.RTN_BLACKHOLE, 0, 0, 0, 0}
	m := netlink.Message{Header: netlink.Header{Type: unix.RTM_NEWROUTE, Flags: netlink.Request | netlink.Acknowledge | netlink.Create}, Data: append(route, attrs...)}
	if !on {
		m.Header.Type, m.Header.Flags = unix.RTM_DELROUTE, netlink.Request|netlink.Acknowledge
	}
	if _, err := c.Execute(m); err != nil {
		t.Fatal(err)
	}
}

package emulator

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
)

// ipv4 makes an IPv4 packet of a length with a number in it.
func ipv4(n, size int, class uint8) []byte {
	p := make([]byte, size)
	p[0], p[1] = 0x45, class
	binary.BigEndian.PutUint16(p[2:], uint16(size))
	binary.BigEndian.PutUint32(p[ipv4Size:], uint32(n))
	binary.BigEndian.PutUint16(p[ipv4Checksum:], ^sum(p[:ipv4Size]))
	return p
}

// sum is the sum of the internet checksum, by RFC 1071.
func sum(b []byte) uint16 {
	s := uint32(0)
	for i := 0; i < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

// arrival is a packet that came out.
type arrival struct {
	n     int
	due   time.Duration
	class uint8
}

// drain takes all that is due until a time.
func drain(t *testing.T, d *direction, until time.Duration) (out []arrival) {
	t.Helper()
	for packet, due := d.give(until); packet != nil; packet, due = d.give(until) {
		if sum(packet[:ipv4Size]) != 0xffff {
			t.Fatalf("% x: the header's checksum is wrong, want 0xffff as its sum", packet[:ipv4Size])
		}
		out = append(out, arrival{int(binary.BigEndian.Uint32(packet[ipv4Size:])), due, packet[1]})
	}
	return out
}

const packetSize = 1000

// TestRate: packets leave at the rate, after the delay, and packets that find no room are lost.
func TestRate(t *testing.T) {
	d := newDirection(Config{Rate: 1_000_000, Delay: 5 * time.Millisecond, Buffer: 12_000}, 0)
	for n := range 20 {
		d.take(0, ipv4(n, packetSize, link.NotECT))
	}
	if got := drain(t, d, 5*time.Millisecond); len(got) != 0 {
		t.Errorf("after the delay alone: got %v, want nothing", got)
	}
	got := drain(t, d, time.Second)
	s := d.stats()
	if len(got) < 10 || len(got) > 12 || s.Overflow != uint64(20-len(got)) || s.Passed != uint64(len(got)) || s.Longest > 12_000 {
		t.Fatalf("got %d of 20 packets through a buffer of 12, %+v, want 10 to 12, the others as overflow, and no queue above 12000 bytes", len(got), s)
	}
	for i, a := range got[1:] {
		if step := a.due - got[i].due; step < time.Millisecond || step > 1100*time.Microsecond {
			t.Errorf("packet %d came %v after the one before it, want 1 ms and the headers' time", a.n, step)
		}
	}
}

// TestLoss: a part is lost, the same by the same seed.
func TestLoss(t *testing.T) {
	run := func(seed uint64) (numbers []int) {
		d := newDirection(Config{Rate: 1_000_000_000, Delay: time.Millisecond, Loss: .1, Seed: seed}, 0)
		for n := range 10_000 {
			d.take(0, ipv4(n, packetSize, link.NotECT))
		}
		for _, a := range drain(t, d, time.Hour) {
			numbers = append(numbers, a.n)
		}
		if lost := d.stats().Lost; lost < 900 || lost > 1100 || lost != uint64(10_000-len(numbers)) {
			t.Errorf("seed %d: lost %d of 10000, of which %d arrived, want about 1000", seed, lost, len(numbers))
		}
		return numbers
	}
	if a := run(1); !slices.Equal(a, run(1)) || slices.Equal(a, run(2)) {
		t.Error("want the same losses by the same seed, and others by another")
	}
}

// TestLate: one packet in four is late, by so much.
func TestLate(t *testing.T) {
	d := newDirection(Config{Rate: 1_000_000_000, Delay: time.Millisecond, LateOneIn: 4, LateBy: time.Millisecond, Seed: 1}, 0)
	late := 0
	const n = 4000
	var got []arrival
	for i := range n {
		now := time.Duration(i) * 10 * time.Microsecond
		got = append(got, drain(t, d, now)...)
		d.take(now, ipv4(i, packetSize, link.NotECT))
	}
	got = append(got, drain(t, d, time.Hour)...)
	for _, a := range got {
		if took := a.due - time.Duration(a.n)*10*time.Microsecond; took > 1900*time.Microsecond && took < 2100*time.Microsecond {
			late++
		} else if took > 1100*time.Microsecond {
			t.Errorf("packet %d took %v, want 1 ms or 2", a.n, took)
		}
	}
	if len(got) != n || late < n/5 || late > n*3/10 {
		t.Errorf("%d of %d packets were late, want a quarter of %d", late, len(got), n)
	}
}

// TestMark: a packet that finds a queue is marked if it allows marks, and nothing else is changed.
func TestMark(t *testing.T) {
	d := newDirection(Config{Rate: 1_000_000, Delay: time.Millisecond, MarkAbove: 3 * packetSize}, 0)
	for n := range 10 {
		d.take(0, ipv4(n, packetSize, []uint8{link.NotECT, 0xb8 | link.ECT0}[n%2]))
	}
	marked := 0
	for _, a := range drain(t, d, time.Hour) {
		switch {
		case a.class == 0xb8|link.CE && a.n > 2:
			marked++
		case a.class != []uint8{link.NotECT, 0xb8 | link.ECT0}[a.n%2]:
			t.Errorf("packet %d came with the traffic class %#x, want the one that it was sent with", a.n, a.class)
		}
	}
	if marked != 4 || d.stats().Marked != 4 {
		t.Errorf("%d packets were marked, %+v, want packets 3, 5, 7 and 9", marked, d.stats())
	}

	six := make([]byte, ipv6Size)
	binary.BigEndian.PutUint32(six, 6<<28|uint32(0xb8|link.ECT0)<<20|0x12345)
	want := bytes.Clone(six)
	binary.BigEndian.PutUint32(want, 6<<28|uint32(0xb8|link.CE)<<20|0x12345)
	if trafficClass(six) != 0xb8|link.ECT0 {
		t.Errorf("got the traffic class %#x, want %#x", trafficClass(six), 0xb8|link.ECT0)
	}
	if mark(six, 0xb8|link.CE); !bytes.Equal(six, want) {
		t.Errorf("IPv6: got % x, want % x", six, want)
	}
	mark([]byte{0}, trafficClass([]byte{0})) // not an IP packet
}

// TestLateness: which part left how late.
func TestLateness(t *testing.T) {
	var d delays
	for range 98 {
		d.add(10_500 * time.Nanosecond)
	}
	d.add(200 * time.Microsecond)
	d.add(time.Second)
	if got, want := d.lateness(), (Lateness{11 * time.Microsecond, latenessMost*time.Microsecond + time.Microsecond, time.Second}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

package linktest

import (
	"bytes"
	"slices"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link"
)

// TrafficClass checks that every datagram arrives with the traffic class that it was sent with, including the ECN
// bits. It sends single datagrams and trains, of the same and of different classes. It is not part of Run, because
// links over the net package's sockets cannot choose the class. Open is as for Run.
func TrafficClass(t *testing.T, open func(t *testing.T) (a, b link.Link)) {
	t.Helper()
	a, b := open(t)
	defer closeAll(t, a, b)
	const dscp26 = 26 << 2
	classes := []uint8{
		0, link.ECT0, link.CE, link.ECT1, dscp26, dscp26 | link.ECT0, dscp26 | link.CE, 0xff, link.ECT0, link.ECT0, link.CE, link.ECT0,
	}
	const size = 500
	for _, train := range []int{1, min(5, a.MaxTrain()), a.MaxTrain()} {
		for _, atOnce := range []bool{true, false} {
			var batch []link.Datagram
			var want []uint8 // of each datagram
			for i, class := range classes {
				n := train
				if i%4 == 3 {
					n = 1 // a single datagram between trains
				}
				batch = append(batch, link.Datagram{Src: a.Source(2), Dst: b.Addr(), Payload: bytes.Repeat([]byte{byte(i)}, n*size),
					SegmentSize: size, TrafficClass: class})
				want = append(want, bytes.Repeat([]byte{class}, n)...)
				if !atOnce {
					send(t, a, batch...)
					batch = batch[:0]
				}
			}
			send(t, a, batch...)
			for i, m := range collect(t, b, len(want)) {
				if m.TrafficClass != want[i] {
					t.Errorf("trains of %d: datagram %d has traffic class %#02x, want %#02x", train, i, m.TrafficClass, want[i])
				}
			}
		}
	}
}

// FlowLabel checks that every datagram arrives with the IPv6 flow label that it was sent with. It sends single
// datagrams and trains, of the same and of different labels and classes. It is for links over IPv6 that can set
// labels and see them. Open is as for Run.
func FlowLabel(t *testing.T, open func(t *testing.T) (a, b link.Link)) {
	t.Helper()
	a, b := open(t)
	defer closeAll(t, a, b)
	labels := []uint32{1, 0x12345, 0x12345, 0xfffff, 0x80000, 0x12345, 0x00777, 0x12345}
	const size = 500
	for _, train := range []int{1, min(5, a.MaxTrain()), a.MaxTrain()} {
		for _, atOnce := range []bool{true, false} {
			var batch []link.Datagram
			var want []uint32 // of each datagram
			for i, label := range labels {
				n := train
				if i%4 == 3 {
					n = 1 // a single datagram between trains
				}
				batch = append(batch, link.Datagram{Src: a.Source(2), Dst: b.Addr(), Payload: bytes.Repeat([]byte{byte(i)}, n*size),
					SegmentSize: size, FlowLabel: label, TrafficClass: uint8(i / 2 * 4)})
				want = append(want, slices.Repeat([]uint32{label}, n)...)
				if !atOnce {
					send(t, a, batch...)
					batch = batch[:0]
				}
			}
			send(t, a, batch...)
			for i, m := range collect(t, b, len(want)) {
				if m.FlowLabel != want[i] || m.TrafficClass != m.payload[0]/2*4 {
					t.Errorf("trains of %d: datagram %d has flow label %#05x and traffic class %#x, want %#05x and %#x",
						train, i, m.FlowLabel, m.TrafficClass, want[i], m.payload[0]/2*4)
				}
			}
		}
	}
}

package linktest

import (
	"bytes"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link"
)

// TrafficClass checks that every datagram arrives with the traffic class that it was sent with,
// including the ECN bits. It sends single datagrams and trains, of the same and of different
// classes. It is not part of Run, because links over the net package's sockets cannot choose the
// class. Open is as for Run.
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

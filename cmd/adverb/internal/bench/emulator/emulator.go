// Package emulator is a bad network between two network namespaces: real sockets of any protocol send through a
// bottleneck with a rate, a delay and a buffer that loses, delays and marks packets by a seed. Each namespace has a
// TUN device, and a thread carries packets from one to the other. The simulated network's code decides the fate of
// each packet.
package emulator

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/fault"
)

// Config describes a path. It is the same in both directions.
type Config struct {
	Rate      int64         // bytes in a second through the bottleneck
	Delay     time.Duration // each way; more than 0
	Buffer    int           // bytes that may wait in the bottleneck; packets that find no room are lost
	Loss      float64       // the probability that a packet is lost before the bottleneck
	LateOneIn int           // one packet in so many, by chance, is late by LateBy; 0: none
	LateBy    time.Duration
	MarkAbove int // a packet that allows marks gets one if it finds more bytes waiting; 0: none does
	Seed      uint64
}

// Stats has the counters of a direction.
type Stats struct {
	Lost     uint64 // by chance
	Overflow uint64 // lost since the buffer was full
	Marked   uint64
	Passed   uint64 // the bottleneck
	Longest  int    // bytes that have waited in the bottleneck
}

// direction is one direction of a path.
type direction struct {
	dice   fault.Dice
	faults fault.Faults
	n      uint64
	port   *fault.Port
	path   *fault.Path
	routes *fault.Routes
	queue  *fault.Queue
	lost   uint64
	out    [1]link.Datagram // given last
	due    time.Duration    // when that was due
}

// newDirection makes a direction. The numbers tell the two directions of a path apart.
func newDirection(c Config, number byte) *direction {
	src, dst := netip.AddrFrom4([4]byte{number}), netip.AddrFrom4([4]byte{0: number, 3: 1})
	d := &direction{
		dice: fault.NewDice(c.Seed, src, dst), faults: fault.Faults{Loss: c.Loss},
		port: fault.NewPort(c.Seed, fault.PortConfig{Rate: c.Rate, Delay: c.Delay, Buffer: c.Buffer, MarkFrom: c.MarkAbove, MarkTo: c.MarkAbove}),
		path: fault.NewPath(c.Seed, src, dst), queue: fault.NewQueue(0),
	}
	// Of as many equal routes as there are packets for one that is late, one is longer.
	ways := make([][]*fault.Port, max(c.LateOneIn, 1))
	for i := range ways {
		ways[i] = []*fault.Port{d.port}
	}
	if c.LateOneIn > 0 {
		ways[0] = append(ways[0], fault.NewPort(c.Seed, fault.PortConfig{Delay: c.LateBy}))
	}
	d.routes = fault.NewRoutes(c.Seed, src, dst, fault.ByPacket, ways)
	return d
}

// take takes an IP packet. Before it, all that is due must have been given.
func (d *direction) take(now time.Duration, packet []byte) {
	n := d.n
	if d.n++; d.dice.Fate(&d.faults, n).Lost {
		d.lost++
		return
	}
	d.path.Route(d.queue, d.routes, now, &link.Datagram{Payload: packet, TrafficClass: trafficClass(packet)})
}

// give returns the next packet that is due, which holds until the next call, and when it was. It returns nil if
// there is none.
func (d *direction) give(now time.Duration) (packet []byte, due time.Duration) {
	for {
		due, ok := d.queue.Next()
		if !ok || due > now {
			return nil, 0
		}
		if due > 0 { // else it came with the one before
			d.due = due
			d.queue.Arrive(due)
		}
		if d.queue.Pop(d.out[:]) == 1 {
			mark(d.out[0].Payload, d.out[0].TrafficClass)
			return d.out[0].Payload, d.due
		}
	}
}

// next returns when the next packet is due. It reports false if there is none.
func (d *direction) next() (time.Duration, bool) { return d.queue.Next() }

func (d *direction) stats() Stats {
	p := d.port.Stats(false)
	return Stats{Lost: d.lost, Overflow: p.Lost, Marked: p.Marked, Passed: p.Passed, Longest: p.Longest}
}

const (
	ipv4Size     = 20 // bytes of an IPv4 header without options
	ipv6Size     = 40
	ipv4Checksum = 10 // where it is
)

func version(packet []byte) byte { return packet[0] >> 4 }

// trafficClass is the TOS or the traffic class of an IP packet.
func trafficClass(packet []byte) uint8 {
	switch {
	case len(packet) >= ipv4Size && version(packet) == 4:
		return packet[1]
	case len(packet) >= ipv6Size && version(packet) == 6:
		return uint8(binary.BigEndian.Uint16(packet) >> 4)
	}
	return link.NotECT
}

// mark gives an IP packet a traffic class that allows marks, as a router does: of IPv4 the checksum changes too,
// by RFC 1624.
func mark(packet []byte, class uint8) {
	if class&link.ECNMask != link.CE || trafficClass(packet) == class {
		return
	}
	old := binary.BigEndian.Uint16(packet)
	if version(packet) == 6 {
		binary.BigEndian.PutUint16(packet, old&0xf00f|uint16(class)<<4)
		return
	}
	packet[1] = class
	sum := uint32(^binary.BigEndian.Uint16(packet[ipv4Checksum:])) + uint32(^old) + uint32(binary.BigEndian.Uint16(packet))
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(packet[ipv4Checksum:], ^uint16(sum+sum>>16))
}

// Lateness is how late packets have left.
type Lateness struct {
	P50, P99, Max time.Duration // the first two are rounded up to the next µs
}

const latenessMost = 10_000 // µs; a longer delay counts as that, but for Max

// delays counts how late packets left.
type delays struct {
	n     uint64
	by    [latenessMost + 1]uint64 // by µs
	worst time.Duration
}

func (d *delays) add(t time.Duration) {
	d.n++
	d.by[min(t/time.Microsecond, latenessMost)]++
	d.worst = max(d.worst, t)
}

func (d *delays) lateness() (l Lateness) {
	seen := uint64(0)
	for us, n := range d.by {
		for _, q := range []struct {
			of *time.Duration
			at uint64
		}{{&l.P50, d.n / 2}, {&l.P99, d.n * 99 / 100}} {
			if seen <= q.at && seen+n > q.at {
				*q.of = time.Duration(us+1) * time.Microsecond
			}
		}
		seen += n
	}
	l.Max = d.worst
	return l
}

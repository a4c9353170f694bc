package lab

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/fault"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// lostPacket is a packet that gets lost once.
type lostPacket struct {
	op       verbs.Opcode
	lost     wire.Opcode
	response bool // the packet goes from the responder to the requester
	sequence bool // the responder notices the loss at the next packet, and sends a NAK
}

var lostPackets = []lostPacket{
	{verbs.OpSend, wire.RCSendFirst, false, true},
	{verbs.OpSend, wire.RCSendMiddle, false, true},
	{verbs.OpSend, wire.RCSendLast, false, false},
	{verbs.OpSend, wire.RCAcknowledge, true, false},
	{verbs.OpRDMAWrite, wire.RCRDMAWriteFirst, false, true},
	{verbs.OpRDMAWrite, wire.RCRDMAWriteMiddle, false, true},
	{verbs.OpRDMAWrite, wire.RCRDMAWriteLast, false, false},
	{verbs.OpRDMARead, wire.RCRDMAReadRequest, false, false},
	{verbs.OpRDMARead, wire.RCRDMAReadResponseFirst, true, false},
	{verbs.OpRDMARead, wire.RCRDMAReadResponseMiddle, true, false},
	{verbs.OpRDMARead, wire.RCRDMAReadResponseLast, true, false},
	{verbs.OpAtomicFetchAdd, wire.RCFetchAdd, false, false},
	{verbs.OpAtomicFetchAdd, wire.RCAtomicAcknowledge, true, false}, // the addition must not happen twice
}

// once returns a Match that holds for the first packet with an opcode, and for no other.
func once(op wire.Opcode) func(*link.Datagram) bool {
	var met atomic.Bool
	return func(d *link.Datagram) bool {
		var p wire.Packet
		return p.Decode(d.Payload) == nil && p.Opcode == op && met.CompareAndSwap(false, true)
	}
}

// towards returns the direction of requests or responses, as our link sees it.
func towards(response bool, responder string) fault.Directions {
	if response == (responder == "kernel") {
		return fault.Incoming
	}
	return fault.Outgoing
}

func TestVerbsLostPacket(t *testing.T) {
	needLab(t)
	for _, c := range lostPackets {
		for _, responder := range []string{"kernel", "adverb"} {
			s := scenario{family: "Verbs", program: "RC loss", server: responder, mtu: 1500, variant: fmt.Sprint("one ", c.lost)}
			lose := &disturber{config: fault.Config{Loss: 1, Match: once(c.lost), Directions: towards(c.response, responder)}}
			s.pair(t, pairOptions{middleware: []link.Middleware{lose.middleware}, timeout: quickTimeout}, func(ctx context.Context, t *testing.T, p *verbsPair) {
				from, to := p.ends(responder)
				switch c.op {
				case verbs.OpSend:
					sends(t, from, to, []int{5 * 1024}, c.op)
				case verbs.OpRDMAWrite:
					writes(t, from, to, []int{5 * 1024}, c.op)
				case verbs.OpRDMARead:
					reads(t, from, to, []int{5 * 1024})
				default:
					fetchAdds(t, from, to, nil)
				}
				lose.check(t)
				if c.sequence {
					p.wantNAK(t, nakSequence)
				}
			})
		}
	}
}

// disturber is middleware that makes faults and counts them.
type disturber struct {
	config fault.Config
	link   fault.Counter // nil until a device is open
}

func (d *disturber) middleware(inner link.Link) link.Link {
	l := fault.New(d.config)(inner)
	d.link = l.(fault.Counter)
	return l
}

func (d *disturber) counts() (out, in fault.Counts) {
	if d.link == nil {
		return
	}
	return d.link.Counts()
}

// check checks that each kind of fault in the configuration has happened, and no other. A scenario
// without faults would prove nothing.
func (d *disturber) check(t *testing.T) {
	t.Helper()
	out, in := d.counts()
	for _, way := range []struct {
		name      string
		direction fault.Directions
		got       fault.Counts
	}{{"our packets", fault.Outgoing, out}, {"the kernel's packets", fault.Incoming, in}} {
		for _, f := range []struct {
			name        string
			probability float64
			count       uint64
		}{
			{"lost", d.config.Loss, way.got.Lost}, {"repeated", d.config.Duplicate, way.got.Duplicated},
			{"reordered", d.config.Reorder, way.got.Reordered}, {"corrupted", d.config.Corrupt, way.got.Corrupted},
		} {
			if want := f.probability > 0 && d.config.Directions&way.direction != 0; want != (f.count > 0) {
				t.Errorf("%d of %s were %s, want some: %v", f.count, way.name, f.name, want)
			}
		}
	}
}

// badICRCs returns bounds for the number of packets that went out with a wrong ICRC. The ICRC does
// not cover all bits that may have been flipped, and a corrupted packet may also have been
// repeated.
func (d *disturber) badICRCs() (least, most int) {
	out, _ := d.counts()
	if out.Corrupted == 0 {
		return 0, 0
	}
	return 1, int(out.Corrupted + min(out.Corrupted, out.Duplicated))
}

// storms are probabilities of faults. A seed decides which packets have them.
var storms = []struct {
	name string
	fault.Config
}{
	{"lost", fault.Config{Loss: 0.05}},
	{"repeated", fault.Config{Duplicate: 0.2}},
	{"reordered", fault.Config{Reorder: 0.1}},
	{"corrupted", fault.Config{Corrupt: 0.05}},
	{"lost, repeated, reordered and corrupted", fault.Config{Loss: 0.03, Duplicate: 0.05, Reorder: 0.03, Corrupt: 0.03}},
}

var stormSeed = flag.Uint64("seed", 20, "of the faults in the scenarios of a bad network")

// All operations run at once in both directions, in a network with many faults.
func TestVerbsStorm(t *testing.T) {
	needLab(t)
	for i, storm := range storms {
		for _, direction := range []fault.Directions{fault.Outgoing, fault.Incoming, fault.Both} {
			whose := map[fault.Directions]string{fault.Outgoing: "our packets", fault.Incoming: "the kernel's packets", fault.Both: "all packets"}[direction]
			d := &disturber{config: storm.Config}
			d.config.Seed, d.config.Directions = *stormSeed, direction
			s := scenario{family: "Verbs", program: "RC storm", server: "both", mtu: 1500, v6: i%2 == 1, variant: whose + " " + storm.name,
				check: packetRules{badICRCs: d.badICRCs}}
			s.pair(t, pairOptions{middleware: []link.Middleware{d.middleware}, timeout: quickTimeout}, func(ctx context.Context, t *testing.T, p *verbsPair) {
				t.Logf("seed %d", *stormSeed)
				mixed(t, p)
				d.check(t)
				_, in := d.counts()
				if drops := p.us.drops(); (drops.ICRC > 0) != (in.Corrupted > 0) {
					t.Errorf("%d packets came corrupted, and the device has counted %+v; want drops by ICRC if and only if some were corrupted", in.Corrupted, drops)
				}
			})
		}
	}
}

// mixRounds is how often each end posts each of the mixed operations.
const mixRounds = 12

// mixed has both ends post SENDs, WRITEs, READs and FETCH_ADDs. It checks the order of completions
// and all contents.
func mixed(t *testing.T, p *verbsPair) {
	t.Helper()
	const (
		size  = 5000
		total = mixRounds * size
	)
	type half struct {
		from, to                   verbsEnd
		sent, received             memory // SEND
		written, target            memory // WRITE
		source, read               memory // READ
		sum, old                   memory
		sentData, wroteData, toGet []byte
	}
	halves := make([]half, 2)
	for i, responder := range []string{"kernel", "adverb"} {
		h := &halves[i]
		h.from, h.to = p.ends(responder)
		h.sent, h.sentData = filled(h.from, total, byte(10+i))
		h.written, h.wroteData = filled(h.from, total, byte(20+i))
		h.source, h.toGet = filled(h.to, total, byte(30+i))
		h.received, h.target, h.read = h.to.mem(total, everything), h.to.mem(total, everything), h.from.mem(total, everything)
		h.sum, h.old = word(h.to, 0), h.from.mem(8*mixRounds, everything)
		for r := range mixRounds {
			h.to.recv(verbs.RecvWR{ID: recvID + uint64(r), SGList: []verbs.SGE{h.received.sge(r*size, size)}})
		}
	}
	kinds := []verbs.WCOpcode{verbs.WCSend, verbs.WCRDMAWrite, verbs.WCRDMARead, verbs.WCFetchAdd}
	for _, h := range halves {
		var wrs []verbs.SendWR
		for r := range mixRounds {
			id := uint64(4 * r)
			wrs = append(wrs,
				verbs.SendWR{ID: id, Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{h.sent.sge(r*size, size)}},
				verbs.SendWR{ID: id + 1, Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{h.written.sge(r*size, size)}, Remote: h.target.remote(r * size)},
				verbs.SendWR{ID: id + 2, Op: verbs.OpRDMARead, Flags: signaled, SGList: []verbs.SGE{h.read.sge(r*size, size)}, Remote: h.source.remote(r * size)},
				verbs.SendWR{ID: id + 3, Op: verbs.OpAtomicFetchAdd, Flags: signaled, CompareAdd: 1, SGList: []verbs.SGE{h.old.sge(8*r, 8)}, Remote: h.sum.remote(8)})
		}
		h.from.send(wrs...)
	}
	for _, h := range halves {
		var sends, receives uint64
		for sends+receives < 5*mixRounds {
			wc := h.from.next()
			want, op := &sends, kinds[sends%4]
			id := sends
			if wc.Op == verbs.WCRecv && wc.Status == verbs.WCSuccess || wc.ID >= recvID {
				want, op, id = &receives, verbs.WCRecv, recvID+receives
			}
			if wc.Status != verbs.WCSuccess || wc.ID != id || wc.Op != op {
				t.Fatalf("%v: completion %d with status %v, operation %v (%v); want %d, success, %v", h.from, wc.ID, wc.Status, wc.Op, wc.Cause, id, op)
			}
			if op == verbs.WCRecv && wc.ByteLen != size {
				t.Errorf("%v: received %d bytes, want %d", h.from, wc.ByteLen, size)
			}
			*want++
		}
	}
	for _, h := range halves {
		same(t, fmt.Sprintf("SENDs of %v", h.from), h.received.get(0, total), h.sentData)
		same(t, fmt.Sprintf("WRITEs of %v", h.from), h.target.get(0, total), h.wroteData)
		same(t, fmt.Sprintf("READs of %v", h.from), h.read.get(0, total), h.toGet)
		if got := wordOf(h.sum); got != mixRounds {
			t.Errorf("%v has added 1 several times: got the sum %d, want %d", h.from, got, mixRounds)
		}
		olds := h.old.get(0, 8*mixRounds)
		for r := range mixRounds {
			if old := binary.LittleEndian.Uint64(olds[8*r:]); old != uint64(r) {
				t.Errorf("%v: FETCH_ADD %d has fetched %#x, want %#x", h.from, r, old, r)
			}
		}
	}
}

const recvID = 1 << 32

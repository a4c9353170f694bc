package transport

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestPrechecked: prechecked packets are the same as those that take all checks. The same work is done twice, with
// all checks for each packet the second time, and both ends send the same packets at the same times.
func TestPrechecked(t *testing.T) {
	seeds := uint64(200)
	if testing.Short() {
		seeds = 60
	}
	prechecked := 0
	for seed := range seeds {
		quick, n := precheckedWork(t, seed, false)
		slow, none := precheckedWork(t, seed, true)
		if prechecked += n; none != 0 {
			t.Fatalf("seed %d: %d packets go prechecked where all take the checks, want none", seed, none)
		}
		for i := range min(len(quick), len(slow)) {
			if quick[i] != slow[i] {
				t.Fatalf("seed %d: line %d is\n%s\nand was, with each packet weighed,\n%s", seed, i, quick[i], slow[i])
			}
		}
		if len(quick) != len(slow) {
			t.Fatalf("seed %d: %d lines, want %d", seed, len(quick), len(slow))
		}
	}
	if prechecked < int(seeds)*10 {
		t.Errorf("%d packets in %d runs go prechecked, want many", prechecked, seeds)
	}
}

// TestPrecheckedRepeat: prechecked packets do not go on as new ones once some packet is to be sent again, even within
// the turn.
func TestPrecheckedRepeat(t *testing.T) {
	p := newPair(t, setup{})
	a := p.a
	const messages = 4
	for id := range uint64(messages) {
		wr := writeWR(id, p.b.mem.remote(0), a.mem.sge(0, 8))
		a.resolve(&wr)
		if err := a.qp.Post(&wr); err != nil {
			t.Fatal(err)
		}
	}
	var buf [MaxDatagram]byte
	a.qp.Turn()
	for i := range messages {
		if a.qp.Transmit(p.now, buf[:]) == 0 {
			t.Fatalf("packet %d was not sent", i)
		}
	}
	if a.rc().requester.prechecked == 0 {
		t.Fatal("no more packets may go prechecked, want some")
	}
	a.qp.HandleTimeout(a.qp.NextTimeout())
	for range 2 * messages { // in the same turn
		a.qp.Transmit(p.now, buf[:])
	}
	if r := &a.rc().recovery; r.Max()-r.Una() != messages {
		t.Errorf("%d packets are numbered, want %d", r.Max()-r.Una(), messages)
	}
}

// precheckedWork has both ends work by a seed, and returns the packets that they sent, their completions, and how
// many packets went prechecked.
func precheckedWork(t *testing.T, seed uint64, noPrecheck bool) (lines []string, prechecked int) {
	r := rand.New(rand.NewPCG(seed, 0))
	p := newPair(t, setup{
		cap:  verbs.QPCap{MaxSendWR: 512, MaxRecvWR: 512, MaxSendSGE: 2, MaxRecvSGE: 1, MaxInlineData: 64},
		mtu:  []verbs.MTU{verbs.MTU256, verbs.MTU1024, verbs.MTU4096}[r.IntN(3)],
		psnA: verbs.PSN(1<<24 - 1 - r.IntN(64)), rd: 1 + r.IntN(8), rnrTimer: 18, selective: r.IntN(2) == 0,
	})
	p.noPrecheck, p.b.receives.credit = noPrecheck, r.IntN(2) == 0
	loss := rand.New(rand.NewPCG(seed, 1))
	if r.IntN(2) == 0 {
		p.route = func(from *node, n int, _ *wire.Packet) []delay {
			if loss.IntN(16) == 0 {
				return nil
			}
			return []delay{testDelay}
		}
	}
	if r.IntN(4) == 0 {
		p.a.rc().recovery.SetWindow(uint64(8 + r.IntN(32)))
	}
	receive := func(n int) {
		p.b.own.Post(slices.Repeat([]verbs.RecvWR{{SGList: []verbs.SGE{p.b.mem.sge(512<<10, 4096)}}}, n))
	}
	id := uint64(0)
	for range 12 {
		receive(r.IntN(6))
		for range r.IntN(40) {
			id++
			p.post(p.a, precheckedWR(r, p, id))
		}
		if r.IntN(4) == 0 { // so that the place behind the last one is not empty
			wr := sendWR(0, p.a.mem.sge(memSize, 8))
			wr.Flags |= verbs.SendInline
			if p.a.resolve(&wr); p.a.qp.State() == verbs.QPStateRTS && p.a.qp.Post(&wr) == nil {
				t.Fatalf("seed %d: inline data outside of the region are taken, want an error", seed)
			}
		}
		switch r.IntN(8) {
		case 0:
			p.state(p.a, verbs.QPStateSQD)
			p.runUntil(p.now + 20*us)
			if p.a.qp.State() == verbs.QPStateSQD {
				p.state(p.a, verbs.QPStateRTS)
			}
		case 1:
			p.runUntil(p.now + 10*ms)
		default:
			p.runUntil(p.now + time.Duration(r.IntN(20))*us)
		}
		if p.a.qp.State() == verbs.QPStateErr {
			break
		}
	}
	for p.a.qp.sq.head != p.a.qp.sq.tail {
		receive(testRecvs)
		p.runUntil(p.now + 100*ms)
	}
	p.run()
	for _, s := range p.log {
		lines = append(lines, fmt.Sprintf("%v at %v, lost %v: %+v %+v %x", s.from.name, s.at, s.lost, s.BTH, s.RETH, s.Payload))
	}
	for _, e := range []*node{p.a, p.b} {
		for _, c := range e.sends {
			lines = append(lines, fmt.Sprintf("%s sent %d: %v", e.name, c.wc.ID, c.wc.Status))
		}
		for _, c := range e.recvd {
			lines = append(lines, fmt.Sprintf("%s received %d: %v", e.name, c.wc.ID, c.wc.Status))
		}
	}
	return lines, p.prechecked
}

// precheckedWR is mostly a short message, sometimes a long one, and sometimes a work request that others wait for.
func precheckedWR(r *rand.Rand, p *pair, id uint64) verbs.SendWR {
	n := r.IntN(200)
	sg := p.a.mem.sge(r.IntN(1000), n)
	var wr verbs.SendWR
	switch r.IntN(24) {
	case 0:
		wr = readWR(id, p.b.mem.remote(0), p.a.mem.sge(256<<10, 1+r.IntN(3000)))
	case 11, 12:
		wr = readWR(id, p.b.mem.remote(0), p.a.mem.sge(256<<10, r.IntN(256)))
	case 1, 9, 10:
		wr = addWR(id, p.b.mem.remote(4096), 1, p.a.mem.sge(300<<10, 8))
	case 2:
		wr = writeWR(id, p.b.mem.remote(8192), p.a.mem.sge(0, 1+r.IntN(60000)))
	case 13:
		wr = sendWR(id, p.a.mem.sge(0, 1+r.IntN(4096)))
	case 14:
		wr = readWR(id, p.b.mem.remote(0), p.a.mem.sge(256<<10, 1+r.IntN(60000)))
	case 3, 4, 5, 6:
		wr = sendWR(id, sg)
	case 7:
		wr = withImm(sendWR(id, sg), uint32(id))
	case 8:
		wr = withImm(writeWR(id, p.b.mem.remote(16384), sg), uint32(id))
	default:
		wr = writeWR(id, p.b.mem.remote(r.IntN(4096)), sg)
	}
	if r.IntN(16) == 0 {
		wr.Flags |= verbs.SendFence
	}
	if r.IntN(8) == 0 {
		wr.Flags |= verbs.SendSolicited
	}
	if r.IntN(600) == 0 {
		wr.SGList[0].Addr += memSize // outside of the region
	}
	return wr
}

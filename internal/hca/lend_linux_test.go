//go:build !adverb_portable

package hca

import (
	"bytes"
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// lendSize is the size of a region whose memory is lent.
const lendSize = 200_000

// lendingPair is a lanePair whose ends lend the memory of two regions, which hold the same bytes in the end. y has a
// receive, and x knows.
func lendingPair(t *testing.T, o options) (p *lanePair, mine, theirs *verbs.MR) {
	t.Helper()
	p = newLanePair(t, o)
	mine, theirs = p.x.mr(lendSize), p.y.mr(lendSize)
	for i := range mine.Bytes() {
		mine.Bytes()[i] = byte(i * 7)
	}
	p.y.recv(verbs.RecvWR{ID: 5, SGList: []verbs.SGE{theirs.SGE(0, lendSize)}})
	p.x.send(writeAll(mine, theirs), readAll(mine, theirs)) // as copies, but both learn of the other's memory
	p.want(p.x)
	p.want(p.x)
	p.answer()
	if !bytes.Equal(mine.Bytes(), theirs.Bytes()) {
		t.Fatal("the WRITE and the READ have brought other bytes")
	}
	return p, mine, theirs
}

func writeAll(src, dst *verbs.MR) verbs.SendWR {
	return verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, lendSize)}, Remote: dst.Remote(0)}
}

func readAll(dst, src *verbs.MR) verbs.SendWR {
	return verbs.SendWR{Op: verbs.OpRDMARead, Flags: signaled, SGList: []verbs.SGE{dst.SGE(0, lendSize)}, Remote: src.Remote(0)}
}

func sendAll(src *verbs.MR) verbs.SendWR {
	return verbs.SendWR{Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, lendSize)}}
}

// standStill keeps e from receiving until the function that it returns is called.
func (e *end) standStill() (goOn func()) {
	e.impl().out.eng.rx.Lock()
	return e.impl().out.eng.rx.Unlock
}

// lent returns how many records of e's lane lend memory and were not read.
func (e *end) lent() int {
	q := e.impl()
	q.mu.Lock()
	defer q.mu.Unlock()
	o := q.lane.out
	o.Lock()
	defer o.Unlock()
	return len(o.Unread(q.lane.lent))
}

// TestLend: long messages by a lane are lent. They count as the packets for which they stand, and cost no memory.
func TestLend(t *testing.T) {
	p, mine, theirs := lendingPair(t, options{untimed: true})
	before := p.x.impl().traffic
	goOn := p.y.standStill()
	mine.Bytes()[1000]++
	p.x.send(writeAll(mine, theirs), sendAll(mine))
	packets := uint64(2 * ((lendSize + p.x.impl().t.Attr().PathMTU.Bytes() - 1) / p.x.impl().t.Attr().PathMTU.Bytes()))
	if n := p.x.lent(); n < 2 {
		t.Errorf("%d records lend memory, want as many as the window allows", n)
	}
	goOn()
	if wc := p.want(p.y); wc.ByteLen != lendSize || !bytes.Equal(mine.Bytes(), theirs.Bytes()) {
		t.Errorf("%d bytes came, or other ones than were sent, want the %d that were sent", wc.ByteLen, lendSize)
	}
	p.want(p.x)
	p.want(p.x)
	after := p.x.impl().traffic
	if n := after.sent - before.sent; n != packets || after.sentNear-before.sentNear != packets || after.sentBytes-before.sentBytes < 2*lendSize {
		t.Errorf("%d packets of %d bytes were sent, want %d of %d and their headers", n, after.sentBytes-before.sentBytes, packets, 2*lendSize)
	}
	if rcvd := p.y.impl().traffic.rcvd; rcvd < packets {
		t.Errorf("%d packets were received, want %d at least", rcvd, packets)
	}
	theirs.Bytes()[2000]++
	p.x.send(readAll(mine, theirs))
	if p.want(p.x); !bytes.Equal(mine.Bytes(), theirs.Bytes()) {
		t.Error("the READ has brought other bytes")
	}
	write := []verbs.SendWR{writeAll(mine, theirs)}
	if n := testing.AllocsPerRun(100, func() { p.x.send(write...); p.want(p.x) }); n != 0 && !raceEnabled {
		t.Errorf("%v allocations for a WRITE that is lent, want none", n)
	}
}

// TestLendWords: a program may change a lent payload. The copy has whole words, each no older than those below it,
// wherever it goes.
func TestLendWords(t *testing.T) {
	const n, off = lendSize / 2 &^ 7, 4 // of memory that is aligned otherwise than its copy
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpSend} {
		t.Run(op.String(), func(t *testing.T) {
			p, mine, theirs := lendingPair(t, options{untimed: true})
			from, to := mine, theirs
			if op == verbs.OpRDMARead {
				from, to = theirs, mine
			}
			wr := verbs.SendWR{Op: op, Flags: signaled, SGList: []verbs.SGE{mine.SGE(0, n)}, Remote: theirs.Remote(off)}
			if op == verbs.OpRDMARead {
				wr.SGList, wr.Remote = []verbs.SGE{mine.SGE(off, n)}, theirs.Remote(0)
			}
			p.x.send(sendAll(mine)) // takes the pair's receive
			p.want(p.x)
			p.want(p.y)
			for at := 0; at < n; at += 8 {
				from.Store64(at, 0)
			}
			var stop atomic.Bool
			done := make(chan struct{})
			go func() {
				defer close(done)
				for v := uint64(1); !stop.Load(); v++ {
					for at := n - 8; at >= 0 && !stop.Load(); at -= 8 {
						from.Store64(at, v<<32|v)
					}
				}
			}()
			defer func() { stop.Store(true); <-done }()
			for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); {
				if op == verbs.OpSend {
					p.y.recv(verbs.RecvWR{SGList: []verbs.SGE{theirs.SGE(off, n)}})
				}
				p.x.send(wr)
				if p.want(p.x); op == verbs.OpSend {
					p.want(p.y)
				}
				for at := 0; at < n; at += 8 {
					v := binary.NativeEndian.Uint64(to.Bytes()[off+at:])
					if v>>32 != v&(1<<32-1) {
						t.Fatalf("word %d is %#x, half old and half new, want halves that are equal", at/8, v)
					}
					if at > 0 && v < binary.NativeEndian.Uint64(to.Bytes()[off+at-8:]) {
						t.Fatalf("word %d is %#x, older than the one below it, want it as new at least", at/8, v)
					}
				}
			}
		})
	}
}

// TestLendRecalled: what a QP has lent when it fails, is reset or is closed comes to nothing, whatever the program
// does with its memory then.
func TestLendRecalled(t *testing.T) {
	for name, end := range map[string]func(e *end){
		"ERR":    func(e *end) { e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState)) },
		"RESET":  func(e *end) { e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState)) },
		"closed": func(e *end) { e.must(e.qp.Close()) },
		"ERR, without the lane": func(e *end) {
			e.impl().lane.out.Close()
			e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
		},
	} {
		p, mine, _ := lendingPair(t, options{untimed: true})
		goOn := p.y.standStill()
		p.x.send(sendAll(mine))
		if n := p.x.lent(); n < 2 {
			t.Errorf("%s: %d records lend memory, want the message in two at least", name, n)
		}
		end(p.x)
		clear(mine.Bytes())
		goOn()
		p.drain(p.y)
		if n, err := p.y.cq.Poll(p.wc[:]); n != 0 || err != nil {
			t.Errorf("%s: completion %v, %v; want none of a SEND that was given up", name, p.wc[0], err)
		}
		if name != "closed" { // else the other end is told nothing, and its QP waits
			p.y.must(p.y.qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
			if wc := p.next(p.y); wc.Status != verbs.WCFlushErr || wc.ID != 5 {
				t.Errorf("%s: the receive ended with %v, want %v", name, wc.Status, verbs.WCFlushErr)
			}
		}
	}
}

// TestLendRegionCloses: a READ that was answered with memory that went before it was taken fails. The
// requester takes the answer for lost, and asks again.
func TestLendRegionCloses(t *testing.T) {
	p, mine, theirs := lendingPair(t, options{})
	clear(mine.Bytes())
	goOn := p.x.standStill()
	p.x.send(readAll(mine, theirs))
	p.drain(p.y)
	if p.y.lent() == 0 {
		t.Error("the READ was not answered with memory that is lent")
	}
	p.y.must(theirs.Close())
	goOn()
	if wc := p.next(p.x); wc.Status != verbs.WCRemAccessErr {
		t.Errorf("the READ ended with %v, want %v", wc.Status, verbs.WCRemAccessErr)
	}
}

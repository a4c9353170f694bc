//go:build linux && (amd64 || arm64)

package native

import (
	"bytes"
	"runtime"
	"sync"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// deep calls f at the bottom of n frames, so that the stack grows on the way.
//
//go:noinline
func deep(n int, f func()) byte {
	var room [512]byte
	room[n%len(room)] = byte(n)
	if n == 0 {
		f()
	} else {
		room[0] += deep(n-1, f)
	}
	return room[0] + room[n%len(room)]
}

// TestGrowingStacks: memory that calls hand to C lies outside stacks, which grow, shrink and move while the calls go on. The
// methods are called without interfaces between, through which the compiler would move the arguments to the heap.
func TestGrowingStacks(t *testing.T) {
	const goroutines, rounds = 8, 10
	f := fake(t)
	stop := make(chan struct{})
	var collector, wg sync.WaitGroup
	collector.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC() // stacks shrink
			}
		}
	})
	for g := range goroutines {
		p := newPair(t, f, fakeName)
		want, _, err := p.a.Query()
		check(t, err)
		port := must(p.dev.QueryPort(ibPort))(t)
		path := verbs.AHAttr{DGID: must(p.dev.GID(rocePort, rocev2))(t).GID, SGIDIndex: rocev2, Port: rocePort}
		wg.Go(func() {
			for i := range rounds {
				deep((g*rounds+i*37)%400, func() {
					if got, _, err := p.a.Query(); err != nil || got != want {
						t.Errorf("the QP: %+v, %v, want %+v", got, err, want)
					}
					if got, err := p.dev.QueryPort(ibPort); err != nil || got != port {
						t.Errorf("the port: %+v, %v, want %+v", got, err, port)
					}
					if h, err := p.pd.CreateAH(path); err != nil || h.Close() != nil {
						t.Errorf("an address handle: %v", err)
					}
					p.exchange(t, byte(g*rounds+i))
				})
			}
		})
	}
	wg.Wait()
	close(stop)
	collector.Wait()
}

// exchange sends bytes made of a seed from a to b: one message out of the program's memory, inline, and one out of the region.
func (p *pair) exchange(t *testing.T, seed byte) {
	const inlineAt, sentFrom, receivedAt = 1 << 11, 0, 1 << 10
	var data [48]byte
	for i := range data {
		data[i] = seed + byte(i)
		p.mr.Bytes()[sentFrom+i] = seed ^ byte(i)
	}
	into := [1]verbs.SGE{p.mr.SGE(receivedAt, len(data))}
	recv := [1]verbs.RecvWR{{ID: 1, SGList: into[:]}}
	if n, err := p.b.Provider().(*qp).PostRecv(recv[:]); n != 1 || err != nil {
		t.Errorf("%d receives are posted: %v", n, err)
	}
	from := [2]verbs.SGE{p.mr.SGE(sentFrom, 16), p.mr.SGE(sentFrom+16, len(data)-16)}
	send := [2]verbs.SendWR{
		{ID: 2, Op: verbs.OpRDMAWrite, Flags: verbs.SendInline | verbs.SendSignaled, InlineData: data[:], Remote: p.mr.Remote(inlineAt)},
		{ID: 3, Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: from[:]},
	}
	if n, err := p.a.Provider().(*qp).PostSend(send[:]); n != 2 || err != nil {
		t.Errorf("%d sends are posted: %v", n, err)
	}
	var wcs [4]verbs.WC
	n, err := p.cq.Provider().(*cq).Poll(wcs[:])
	ids := uint64(0)
	for i := range n {
		if wcs[i].Status != verbs.WCSuccess {
			t.Errorf("completion %+v", wcs[i])
		}
		ids |= 1 << wcs[i].ID
	}
	if n != 3 || ids != 1<<1|1<<2|1<<3 || err != nil {
		t.Errorf("%d completions, with IDs %b: %v", n, ids, err)
	}
	if got := p.mr.Bytes()[inlineAt:][:len(data)]; !bytes.Equal(got, data[:]) {
		t.Errorf("the inline data arrive as %x, want %x", got, data)
	}
	if got, want := p.mr.Bytes()[receivedAt:][:len(data)], p.mr.Bytes()[sentFrom:][:len(data)]; !bytes.Equal(got, want) {
		t.Errorf("the message arrives as %x, want %x", got, want)
	}
}

// TestLibraryDisturbs: a library that starts threads and a child and handles a signal does no harm to calls that go on.
func TestLibraryDisturbs(t *testing.T) {
	f := fake(t)
	p := newPair(t, f, fakeName)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 50 {
			if r := f.disturb(); r != 0 {
				t.Errorf("the library: step %d failed", r)
				return
			}
		}
	}()
	wcs := make([]verbs.WC, 1)
	for i := uint64(0); ; i++ {
		select {
		case <-done:
			return
		default:
			p.postPoll(t, []verbs.SendWR{p.write(i)}, wcs)
			if wcs[0].ID != i || wcs[0].Status != verbs.WCSuccess {
				t.Fatalf("completion %+v, want %d", wcs[0], i)
			}
			if i%64 == 0 {
				runtime.GC()
			}
		}
	}
}

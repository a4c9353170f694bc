package rnic

import (
	"bytes"
	"errors"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/verbs"
)

// nap has y's program poll busily for x's WRITEs, until y's stream naps.
func nap(t *testing.T, x, y *end, src, dst *verbs.MR) {
	t.Helper()
	p := y.prov.polling.Load()
	deadline := time.Now().Add(patience)
	for p.nappers.Load() == 0 {
		if time.Now().After(deadline) {
			t.Fatal("the stream does not nap, though the program polls busily")
		}
		x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, 8)}, Remote: dst.Remote(0)})
		x.done()
		for range busyLooks {
			if _, err := y.cq.Poll(make([]verbs.WC, 1)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestNap: while a program polls busily, bytes that come wake nobody. That ends when somebody is about to
// wait, or when nobody polls any more: one-sided traffic goes on.
func TestNap(t *testing.T) {
	x, y := pair(t)
	src, dst := x.mr(64), y.mr(64)
	other, err := y.dev.CreateCQ(1)
	y.must(err)
	deadline := time.Now().Add(patience)
	for n := int32(0); n == 0; n = y.prov.polling.Load().nappers.Load() { // the nap may be over by then
		if time.Now().After(deadline) {
			t.Fatal("no stream naps while somebody waits for another CQ")
		}
		nap(t, x, y, src, dst)
		y.must(other.Notify(false))
	}
	y.must(y.cq.Notify(false))
	if n := y.prov.polling.Load().nappers.Load(); n != 0 {
		t.Errorf("%d streams nap while somebody waits for their CQ, want none", n)
	}
	nap(t, x, y, src, dst)
	fill(src.Bytes(), 3)
	x.write(src, dst) // which y answers without its program
	if !bytes.Equal(src.Bytes(), dst.Bytes()) {
		t.Error("other bytes have come than were written")
	}
}

// TestRoomAfterNap: a program that has polled busily and waits now gets on with its work requests, though
// its stream takes them bit by bit.
func TestRoomAfterNap(t *testing.T) {
	x, y := ends(t)
	a, b := tcpPair(t)
	x.must(errors.Join(a.(*net.TCPConn).SetWriteBuffer(64<<10), b.(*net.TCPConn).SetReadBuffer(64<<10)))
	tx, ty := agree(t, deep, deep, nil)
	x.attach(a, tx)
	y.attach(b, ty)
	nap(t, y, x, y.mr(64), x.mr(64))
	x.must(x.cq.Notify(false))
	const n = 8 << 20
	src, dst := x.mr(n), y.mr(n)
	fill(src.Bytes(), 5)
	busy := &y.prov.qps.Get(uint32(y.qp.QPN())).mu
	busy.Lock() // y does not read meanwhile
	x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{src.SGE(0, n)}, Remote: dst.Remote(0)})
	q := x.prov.qps.Get(uint32(x.qp.QPN()))
	q.mu.Lock()
	blocked := q.s.blocked
	q.mu.Unlock()
	busy.Unlock()
	if !blocked {
		t.Errorf("the stream has taken %d bytes at once, want it to block", n)
	}
	x.write(src, dst)
	if !bytes.Equal(src.Bytes(), dst.Bytes()) {
		t.Error("other bytes have come than were written")
	}
}

// TestBusyStreams: streams that have much to read do not keep one another waiting.
func TestBusyStreams(t *testing.T) {
	d := newDevice(t)
	const n = 4
	var xs, ys [n]*end
	var src, dst [n]*verbs.MR
	for i := range n {
		xs[i], ys[i] = newEnd(t, newDevice(t)), newEnd(t, d)
		xs[i].connect(ys[i])
		src[i], dst[i] = xs[i].mr(4<<20), ys[i].mr(4<<20)
		fill(src[i].Bytes(), i)
	}
	for i := range n {
		xs[i].send(
			verbs.SendWR{Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{src[i].SGE(0, 4<<20)}, Remote: dst[i].Remote(0)},
			verbs.SendWR{Op: verbs.OpRDMARead, Flags: signaled, SGList: []verbs.SGE{src[i].SGE(0, 0)}, Remote: dst[i].Remote(0)})
	}
	for i := range n {
		xs[i].done()
		if !bytes.Equal(src[i].Bytes(), dst[i].Bytes()) {
			t.Errorf("stream %d: other bytes have come than were written, want the same", i)
		}
	}
}

// TestIdleStreams: a connection has no goroutine.
func TestIdleStreams(t *testing.T) {
	d, other := newDevice(t), newDevice(t)
	connect := func() (x *end) {
		x = newEnd(t, d)
		y := newEnd(t, other)
		x.connect(y)
		x.write(x.mr(64), y.mr(64))
		return x
	}
	connect()
	before := runtime.NumGoroutine()
	for range 20 {
		connect()
	}
	if after := runtime.NumGoroutine(); after >= before+20 {
		t.Errorf("20 more connections, and %d goroutines where there were %d, want fewer than 20 more", after, before)
	}
}

// TestNoDescriptors: where the poller can have no descriptor of its own for a socket, Go's poller waits for it.
func TestNoDescriptors(t *testing.T) {
	x, y := ends(t)
	a, b := tcpPair(t)
	tx, ty := agree(t, deep, deep, nil)
	var limit syscall.Rlimit
	x.must(syscall.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	x.must(syscall.Setrlimit(unix.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 3, Max: limit.Max}))
	defer syscall.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	x.attach(a, tx)
	y.attach(b, ty)
	for _, e := range []*end{x, y} {
		if _, ok := e.prov.qps.Get(uint32(e.qp.QPN())).s.sock.(*connSocket); !ok {
			t.Error("there was a descriptor more")
		}
	}
	exchange(t, x, y, 1<<20)
}

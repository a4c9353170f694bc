package hca

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// A process that stood still for a minute takes what has come meanwhile before it looks at the clock. So
// a connection with no retries, whose peer has answered in time, and one with keep-alive go on.
func TestStoppedForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := sim.New(sim.Config{})
		var devs [2]*Device
		var users [2]*verbs.Device
		for i := range devs {
			d, err := Open(net.Netdev("sim", simAddr(1+i)), Config{Driven: true})
			if err != nil {
				t.Fatal(err)
			}
			devs[i], users[i] = d, verbs.NewDevice(d)
			defer d.Close()
		}
		x, y := newEnd(t, users[0], options{}), newEnd(t, users[1], options{})
		x.join(y, options{rtr: true})
		y.join(x, options{rtr: true})
		for _, e := range []*end{x, y} {
			e.must(e.qp.RTS(firstPSN, verbs.Retry{Timeout: 10, RetryCount: 0})) // 4 ms, once
			e.must(e.qp.SetKeepAlive(time.Second))
		}
		src, dst := x.mr(8192), y.mr(8192)
		for stopped := range 2 {
			fill(src.Bytes(), uint64(stopped))
			x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, src.Len())}, Remote: dst.Remote(0)})
			devs[1].Drive(false) // which answers
			time.Sleep(time.Minute)
			for range 8 {
				devs[0].Drive(false)
				devs[1].Drive(false)
			}
			x.done()
			if !bytes.Equal(src.Bytes(), dst.Bytes()) {
				t.Error("other bytes arrived than were sent")
			}
			for _, e := range []*end{x, y} {
				if s := e.qp.State(); s != verbs.QPStateRTS {
					t.Errorf("after %d minutes of standing still a QP is in %v, want RTS: %v", 1+stopped, s, e.qp.Err())
				}
			}
		}
	})
}

// The peer of a process that stands still notices within the time that its retries give, not later. The
// other end learns of it when it goes on.
func TestPeerStoppedForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := sim.New(sim.Config{})
		d, err := Open(net.Netdev("sim", simAddr(2)), Config{Driven: true})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		x, y := connect(t, simDevice(t, net, 1), verbs.NewDevice(d), options{timeout: 10}) // 4 ms, 7 times more
		src, dst := x.mr(64), y.mr(64)
		start := time.Now()
		x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, 64)}, Remote: dst.Remote(0)})
		if wc := x.next(); wc.Status != verbs.WCRetryExceeded {
			t.Errorf("got %v, want %v", wc.Status, verbs.WCRetryExceeded)
		}
		if took := time.Since(start); took > 8*4*4200*time.Microsecond {
			t.Errorf("the peer was noticed to be away after %v, want within 8 timeouts of 4.2 to 16.8 ms", took)
		}
		time.Sleep(time.Minute)
		d.Drive(false) // takes the eight packets, one of them new
		y.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{dst.SGE(0, 64)}, Remote: src.Remote(0)})
		for range 100 {
			time.Sleep(5 * time.Millisecond)
			d.Drive(false)
		}
		if wc := y.next(); wc.Status != verbs.WCRetryExceeded {
			t.Errorf("at the other end: got %v, want %v", wc.Status, verbs.WCRetryExceeded)
		}
	})
}

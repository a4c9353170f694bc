package hca

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestDriven: a driven device has no goroutine, and does nothing until it is driven. Then it does all that
// is due: it receives, repeats what was lost, and raises what other devices raise on goroutines.
func TestDriven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := runtime.NumGoroutine()
		net := sim.New(sim.Config{})
		var devs [2]*Device
		var users [2]*verbs.Device
		for i := range devs {
			d, err := Open(net.Netdev("sim", simAddr(1+i)), Config{Driven: true})
			if err != nil {
				t.Fatal(err)
			}
			devs[i], users[i] = d, verbs.NewDevice(d)
		}
		x, y := connect(t, users[0], users[1], options{cqe: 1})
		if n := runtime.NumGoroutine(); n > before { // those of other tests may end
			t.Errorf("%d goroutines, want the %d that there were, or fewer", n, before)
		}
		mr := x.mr(8)
		net.Partition(simAddr(1), simAddr(2))
		x.send(verbs.SendWR{ID: 1, Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{mr.SGE(0, 8)}, Remote: y.mr(8).Remote(0)})
		net.Heal(simAddr(1), simAddr(2))
		wait, ok := devs[0].NextDrive()
		if !ok || wait < time.Millisecond {
			t.Fatalf("NextDrive says %v, %v; want the acknowledge timeout", wait, ok)
		}
		time.Sleep(wait)
		for range 2 {
			devs[0].Drive(false)
			devs[1].Drive(false)
		}
		if n := x.cq.Provider().(*cq).Waiting(); n != 1 {
			t.Errorf("%d completions, want that of the WRITE, which was repeated", n)
		}
		x.send(verbs.SendWR{ID: 2, Op: verbs.OpRDMAWrite, Flags: signaled, Remote: verbs.RemoteAddr{}}) // overruns the CQ
		for range 3 {
			devs[1].Drive(false)
			devs[0].Drive(false)
		}
		if s := x.qp.State(); s != verbs.QPStateErr {
			t.Errorf("the QP is in %v after its CQ was overrun, want %v", s, verbs.QPStateErr)
		}
		if ev, err := x.dev.NextEvent(context.Background()); err != nil || ev.Type != verbs.EventCQErr {
			t.Errorf("event %v, %v; want CQ_ERR", ev.Type, err)
		}
		for _, d := range devs {
			d.Close()
		}
	})
}

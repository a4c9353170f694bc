package rdmacm_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestNarrowPath: the network loses packets of more than 1500 bytes. The first connection fails by that and says
// so, and the next one asks for the path MTU that fits. After ten minutes the port's is tried again.
func TestNarrowPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		narrow := p.net.Port(rdmatest.PortConfig{MTU: 1500})
		p.net.Route(p.a, p.b, narrow)
		p.net.Route(p.b, p.a, p.net.Port(rdmatest.PortConfig{MTU: 1500}))
		const size = 64 << 10
		shrunk := uint64(0) // connections with less than the port's path MTU; counters go on when a connection manager ends
		// write connects with a path MTU, and writes a few bytes and then many.
		write := func(mtu verbs.MTU) error {
			t.Helper()
			var in *verbs.MR
			x, y := p.connect(t, &rdmacm.Config{}, &rdmacm.Config{Setup: inbox(&in, size)})
			defer func() { // the listener's port is free for the next
				x.Close()
				in.Close()
				y.Close()
			}()
			for _, c := range []*rdmacm.Conn{x, y} {
				if a, _, err := c.QP().Query(); err != nil || a.PathMTU != mtu {
					t.Fatalf("path MTU %v, %v; want %v", a.PathMTU, err, mtu)
				}
			}
			if mtu < verbs.MTU4096 {
				shrunk++
			}
			if cs, err := p.a.Counters(); err != nil || count(cs, "cm_tx_smaller_mtu") != shrunk {
				t.Errorf("cm_tx_smaller_mtu %d, %v; want %d", count(cs, "cm_tx_smaller_mtu"), err, shrunk)
			}
			src, err := x.AllocMR(size, verbs.AccessLocalWrite)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range []int{8, size} {
				if _, err := x.QP().PostSend([]verbs.SendWR{{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, n)}, Remote: in.Remote(0)}}); err != nil {
					t.Fatal(err)
				}
				var wcs [1]verbs.WC
				if _, err := x.SendCQ().Wait(patience(t), wcs[:]); err != nil {
					t.Fatal(err)
				}
				if err := wcs[0].Err(); err != nil {
					if n == 8 {
						t.Fatal(err)
					}
					<-x.Disconnected()
					if _, ok := errors.AsType[*verbs.PathMTUError](x.Cause()); !ok {
						t.Errorf("cause %v, want the path MTU in it", x.Cause())
					}
					return err
				}
			}
			return nil
		}
		err := write(verbs.MTU4096)
		if hole, ok := errors.AsType[*verbs.PathMTUError](err); !ok || *hole != (verbs.PathMTUError{PathMTU: verbs.MTU4096, Lost: 4096, Fits: verbs.MTU1024}) ||
			!errors.Is(err, verbs.WCRetryExceeded) || !strings.Contains(err.Error(), "use path MTU 1024 at both ends") {
			t.Fatalf("got %v, want the remedy in it", err)
		}
		if s := narrow.Stats(); s.TooLong == 0 || s.Lost != 0 {
			t.Errorf("%+v, want packets that were too long", s)
		}
		if err := write(verbs.MTU1024); err != nil {
			t.Errorf("got %v, want the next connection to work", err)
		}
		time.Sleep(10 * time.Minute)
		if err := write(verbs.MTU4096); err == nil {
			t.Error("no error, want packets of 4096 bytes lost again")
		}
		if cs, err := p.a.Counters(); err != nil || count(cs, "path_mtu_exceeded_err") != 2 {
			t.Errorf("path_mtu_exceeded_err %d, %v; want 2", count(cs, "path_mtu_exceeded_err"), err)
		}
	})
}

func count(cs verbs.Counters, name string) uint64 {
	n, _ := cs.Get(name)
	return n
}

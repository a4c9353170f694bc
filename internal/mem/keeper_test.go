package mem

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestKeeper: between Keep and Release the region that was opened last stays in place, and no other. What is opened
// is checked as ever.
func TestKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPD(t)
		other := p.keys.NewPD()
		var k Keeper
		open := func(p *PD, r *Region, n uint64) error {
			s, err := k.Open(p, r.RKey(), 1, r.Addr(), n, verbs.AccessRemoteWrite)
			s.Release()
			return err
		}
		closing := func(r *Region) (closed *bool) {
			closed = new(bool)
			go func() {
				if err := r.Close(); err != nil {
					t.Error(err)
				}
				*closed = true
			}()
			synctest.Wait()
			return closed
		}
		want := func(what string, closed *bool, want bool) {
			t.Helper()
			if synctest.Wait(); *closed != want {
				t.Errorf("%s: the region has closed: %v, want %v", what, *closed, want)
			}
		}

		register := func() *Region { return region(t, p, verbs.MRAttr{Buf: make([]byte, 64), Access: everything}) }
		a, b, c := register(), register(), register()
		k.Keep()
		for range 2 { // held, and then kept
			if err := open(p, a, 64); err != nil {
				t.Error(err)
			}
			if err := open(p, a, 65); !errors.Is(err, ErrBounds) {
				t.Errorf("beyond the end: %v, want ErrBounds", err)
			}
			if err := open(other, a, 1); !errors.Is(err, ErrDomain) {
				t.Errorf("by another protection domain: %v, want ErrDomain", err)
			}
		}
		sg := []verbs.SGE{{Addr: a.Addr(), Length: 8, LKey: a.LKey()}, {Addr: b.Addr(), Length: 8, LKey: b.LKey()}}
		if err := k.Gather(p, make([]byte, 16), sg, 0); err != nil {
			t.Error(err)
		}
		first := closing(a)
		want("after another was opened", first, true)
		second := closing(b)
		want("while it is kept", second, false)
		if err := open(p, b, 1); err == nil {
			t.Error("a region that is closing, and kept: no error, want its keys to be gone")
		}
		k.Release()
		want("after Release", second, true)

		if err := open(p, c, 1); err != nil {
			t.Error(err)
		}
		third := closing(c)
		want("without Keep", third, true)
		k.Release() // once more does nothing
	})
}

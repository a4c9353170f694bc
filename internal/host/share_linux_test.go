//go:build !adverb_portable

package host

import (
	"errors"
	"testing"

	"github.com/adverb-rdma/adverb/internal/handover/handovertest"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/verbs"
)

// A service is shared by those alone who share it, of any process of this user. One of them may have it alone once the
// others are gone.
func TestShareService(t *testing.T) {
	g := newGSITeam(t, 45, 3)
	s, addr := service(), testAddr(45)
	share := func(i int) (claim func() (bool, error), release func()) {
		t.Helper()
		claim, release, ok, err := g.ms[i].netdev.ShareService(addr, s)
		if !ok || err != nil {
			t.Fatalf("member %d shares: %v, %v; want true", i, ok, err)
		}
		return claim, release
	}
	refused := func(what string, ok bool, err error) {
		t.Helper()
		if ok || err != nil && !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("%s: %v, %v; want false and, of another member's, %v", what, ok, err, verbs.ErrBusy)
		}
	}
	release := g.claim(0, s)
	_, _, ok, err := g.ms[1].netdev.ShareService(addr, s)
	refused("sharing what another has claimed", ok, err)
	release()

	_, release1 := share(1)
	claim2, release2 := share(2)
	for i := range g.ms {
		_, ok, err := g.ms[i].netdev.ClaimService(addr, s)
		refused("claiming what others share", ok, err)
	}
	ok, err = claim2()
	refused("having alone what another shares", ok, err)
	_, ok, err = g.ms[0].netdev.ClaimService(addr, s)
	refused("claiming what others share still", ok, err)
	release1()
	if ok, err := claim2(); !ok || err != nil {
		t.Fatalf("having alone what nobody else shares: %v, %v; want true", ok, err)
	}
	_, _, ok, err = g.ms[1].netdev.ShareService(addr, s)
	refused("sharing what one who has shared has alone", ok, err)
	_, ok, err = g.ms[1].netdev.ClaimService(addr, s)
	refused("claiming what one who has shared has alone", ok, err)
	if !g.ms[2].netdev.owns(serviceName(addr, s)) {
		t.Error("the messages to the service do not come to the one who has it")
	}
	release2()
	files := handovertest.OpenFiles(t)
	for range 50 {
		claim, release := share(1)
		if ok, err := claim(); !ok || err != nil {
			t.Fatalf("having alone what was given back: %v, %v; want true", ok, err)
		}
		release()
		_, release = share(1)
		release()
	}
	if n := handovertest.OpenFiles(t); n > files+2 {
		t.Errorf("%d files after shares and releases, want %d as before, or 2 more", n, files)
	}
	g.ms[1].leave()
	if _, _, ok, err := g.ms[1].netdev.ShareService(addr, s); ok || !errors.Is(err, link.ErrClosed) {
		t.Errorf("sharing after the end: %v, %v; want %v", ok, err, link.ErrClosed)
	}
}

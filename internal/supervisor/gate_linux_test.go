//go:build amd64 || arm64

package supervisor

import (
	"slices"
	"testing"
	"testing/synctest"
)

// Those who would change frozen memory wait, and nobody else does.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gate
		var order []string
		enter := func(id int, what string) chan struct{} {
			done := make(chan struct{})
			go func() {
				defer close(done)
				g.enter(id)
				order = append(order, what)
				g.leave()
			}()
			synctest.Wait()
			return done
		}
		<-enter(1, "before")
		g.freeze(map[int]bool{1: true, 2: true})
		held := enter(2, "frozen")
		<-enter(3, "another")
		order = append(order, "thaw")
		g.thaw()
		<-held
		<-enter(1, "after")
		if want := []string{"before", "another", "thaw", "frozen", "after"}; !slices.Equal(order, want) {
			t.Errorf("got %q, want %q", order, want)
		}
		g.thaw() // of nothing
	})
}

func TestWithout(t *testing.T) {
	all := []span{{10, 20}, {30, 40}}
	for _, x := range []struct {
		out  span
		want []span
	}{
		{span{0, 10}, all},
		{span{20, 30}, all},
		{span{0, 50}, nil},
		{span{12, 15}, []span{{10, 12}, {15, 20}, {30, 40}}},
		{span{5, 15}, []span{{15, 20}, {30, 40}}},
		{span{15, 35}, []span{{10, 15}, {35, 40}}},
	} {
		if got := without(all, x.out); !slices.Equal(got, x.want) {
			t.Errorf("without %v: got %v, want %v", x.out, got, x.want)
		}
	}
}

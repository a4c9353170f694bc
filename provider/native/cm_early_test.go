//go:build linux && (amd64 || arm64)

package native

import (
	"errors"
	"net"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestEarlyAnswer: the kernel takes an iWARP QP to RTS by itself, and the peer's data may come before the event that says so.
// A program that has received may answer.
func TestEarlyAnswer(t *testing.T) {
	p := newPair(t, fake(t), fakeName)
	q := p.b.Provider().(*qp)
	q.state.Store(uint32(verbs.QPStateInit)) // all that is known before the event
	answer := verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{p.mr.SGE(0, 8)}}
	if err := p.b.PostOneSend(answer); !errors.Is(err, verbs.ErrState) {
		t.Errorf("a send before anything has come: got %v, want ErrState", err)
	}
	if _, err := p.b.PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{p.mr.SGE(64, 8)}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.a.PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{p.mr.SGE(128, 8)}}}); err != nil {
		t.Fatal(err)
	}
	check(t, p.a.PostOneSend(answer))
	wcs := make([]verbs.WC, 2)
	if n, err := p.cq.Poll(wcs); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if s := p.b.State(); s != verbs.QPStateRTS {
		t.Errorf("after a receive: %v, want RTS", s)
	}
	check(t, p.b.PostOneSend(answer))
	if n, err := p.cq.Poll(wcs); n != 2 || err != nil || wcs[0].Err() != nil || wcs[1].Err() != nil {
		t.Fatal(n, err, wcs)
	}
}

// TestInterfaceName: a number of an interface gives its name, and a number of none gives nothing.
func TestInterfaceName(t *testing.T) {
	all, err := net.Interfaces()
	if err != nil || len(all) == 0 {
		t.Skip("the host has no interface: ", err)
	}
	for _, ifi := range all {
		if got := interfaceName(uint32(ifi.Index)); got != ifi.Name {
			t.Errorf("interface %d: got %q, want %q", ifi.Index, got, ifi.Name)
		}
	}
	for _, none := range []uint32{0, 1 << 30} {
		if got := interfaceName(none); got != "" {
			t.Errorf("interface %d: got %q, want nothing", none, got)
		}
	}
}

package rsocket

import (
	"testing"

	_ "github.com/adverb-rdma/adverb/provider/soft"
)

// TestMayLook: a call looks before it sleeps only while the peer is in another process. Connections that are closed are
// forgotten.
func TestMayLook(t *testing.T) {
	l, err := Listen("rsocket", "127.0.0.1:0")
	if err != nil {
		t.Skipf("no loopback interface to test on: %v", err)
	}
	defer l.Close()
	accepted := make(chan *Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
			close(accepted)
			return
		}
		accepted <- c.(*Conn)
	}()
	c, err := Dial("rsocket", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	x := c.(*Conn)
	y := <-accepted
	if y == nil {
		return
	}
	if x.mayLook() || y.mayLook() {
		t.Errorf("looks pay: %v, %v; want none, both ends are here", x.mayLook(), y.mayLook())
	}
	y.Close()
	if !x.mayLook() {
		t.Error("looks do not pay, though no end of this process has the peer's address")
	}
	x.Close()
	ends.RLock()
	defer ends.RUnlock()
	if len(ends.n) != 0 {
		t.Errorf("after Close: %v, want no ends", ends.n)
	}
}

package rdmacm_test

import (
	"errors"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestMemoryOfConn: memory that a connection owns ends with it, so that nothing is left of it in the PD
// that the device's connections share. Other memory there stays.
func TestMemoryOfConn(t *testing.T) {
	p := newPair(t)
	type state struct{ in, out *verbs.MR }
	own := make([]byte, 32)
	setup := func(c *rdmacm.Conn) error {
		in, err := c.AllocMR(64, verbs.AccessLocalWrite|verbs.AccessMWBind)
		if err != nil {
			return err
		}
		out, err := c.RegMR(own, 0)
		c.Context = &state{in, out}
		return err
	}
	x, _ := p.connect(t, &rdmacm.Config{Setup: setup}, nil)
	s, ok := x.Context.(*state)
	if !ok {
		t.Fatalf("Conn.Context: got %v, want what Setup has left there", x.Context)
	}
	stays, err := x.PD().AllocMR(8, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 { // regions that come and go are not kept
		mr, err := x.AllocMR(8, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := mr.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if !s.in.Closed() || !s.out.Closed() {
		t.Errorf("after Close: memory of AllocMR closed: %t, of RegMR: %t, want both", s.in.Closed(), s.out.Closed())
	}
	if stays.Closed() {
		t.Error("after Close: memory of the PD that the connection does not own is closed")
	}
	for _, register := range []func() (*verbs.MR, error){
		func() (*verbs.MR, error) { return x.AllocMR(8, 0) }, func() (*verbs.MR, error) { return x.RegMR(own, 0) },
	} {
		if mr, err := register(); !errors.Is(err, verbs.ErrClosed) || mr != nil {
			t.Errorf("registering after Close: got %v and error %v, want %v", mr, err, verbs.ErrClosed)
		}
	}
	last, _ := p.connect(t, nil, nil)
	if err := errors.Join(stays.Close(), last.Close(), p.a.Close()); err != nil { // nothing is left
		t.Error(err)
	}
}

// TestMemoryOfFailedSetup: regions that Setup has registered before it fails are closed.
func TestMemoryOfFailedSetup(t *testing.T) {
	p := newPair(t)
	l := p.listen(t, addr(t, p.b, false, 0))
	why := errors.New("no receive")
	var mr *verbs.MR
	_, err := p.dial(t, l.Addr(), &rdmacm.Config{Setup: func(c *rdmacm.Conn) (err error) {
		if mr, err = c.AllocMR(64, 0); err != nil {
			return err
		}
		return why
	}})
	if !errors.Is(err, why) || !mr.Closed() {
		t.Errorf("Dial: got error %v, memory closed: %t, want %v, and memory that is closed", err, mr.Closed(), why)
	}
	if err := p.a.Close(); err != nil {
		t.Error(err)
	}
}

// TestMemoryBusy: a window that is bound to the connection's memory keeps Close from ending, until the
// window is closed.
func TestMemoryBusy(t *testing.T) {
	p := newPair(t)
	x, _ := p.connect(t, nil, nil)
	mr, err := x.AllocMR(64, verbs.AccessLocalWrite|verbs.AccessMWBind)
	if err != nil {
		t.Fatal(err)
	}
	mw, err := x.PD().AllocMW(verbs.MWType1)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.QP().BindMW(verbs.SendWR{Flags: verbs.SendSignaled}, verbs.MWBind{MW: mw, MR: mr, Addr: mr.Addr(), Length: 64, Access: verbs.AccessRemoteRead}); err != nil {
		t.Fatal(err)
	}
	wait(t, x.SendCQ())
	for range 2 {
		if err := x.Close(); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("Close with a bound window: got error %v, want %v", err, verbs.ErrBusy)
		}
	}
	if err := mw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := x.Close(); err != nil || !mr.Closed() {
		t.Errorf("Close without it: got error %v, memory closed: %t, want no error, and closed", err, mr.Closed())
	}
}

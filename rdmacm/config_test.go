package rdmacm_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// Private data in Config.Param, where C has it, reaches the peer.
func TestPrivateDataInParam(t *testing.T) {
	p := newPair(t)
	dialer, listener := rdmacm.DefaultConnParam(), rdmacm.DefaultConnParam()
	dialer.PrivateData, listener.PrivateData = []byte("hello"), []byte("welcome")
	x, y := p.connect(t, &rdmacm.Config{Param: &dialer}, &rdmacm.Config{Param: &listener})
	if got := string(y.PrivateData()); !strings.HasPrefix(got, "hello\x00") {
		t.Errorf("the listener: got private data %q, want hello", got)
	}
	if got := string(x.PrivateData()); !strings.HasPrefix(got, "welcome\x00") {
		t.Errorf("the dialer: got private data %q, want welcome", got)
	}
}

// Dial and Accept refuse fields that they would ignore.
func TestParamRefused(t *testing.T) {
	p := newPair(t)
	l := p.listen(t, addr(t, p.b, false, 0))
	for _, tt := range []struct {
		name   string
		change func(*rdmacm.Config)
		text   string
	}{
		{"private data twice", func(c *rdmacm.Config) { c.PrivateData, c.Param.PrivateData = []byte("a"), []byte("b") }, "in Config.PrivateData and in Config.Param"},
		{"a QP", func(c *rdmacm.Config) { c.Param.QPN = 17 }, "names a QP, 0x000011"},
		{"an SRQ", func(c *rdmacm.Config) { c.Param.SRQ = true }, "leave QPN and SRQ empty"},
	} {
		param := rdmacm.DefaultConnParam()
		c := &rdmacm.Config{Param: &param}
		tt.change(c)
		if _, err := p.dial(t, l.Addr(), c); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s, Dial: got error %v, want %v with %q in it", tt.name, err, verbs.ErrInvalid, tt.text)
		}
		done := accept(t, l, c)
		if _, err := p.dial(t, l.Addr(), nil); !errors.Is(err, rdmacm.ErrRefused) {
			t.Errorf("%s, the peer of Accept: got error %v, want %v", tt.name, err, rdmacm.ErrRefused)
		}
		if got := <-done; !errors.Is(got.err, verbs.ErrInvalid) || !strings.Contains(got.err.Error(), tt.text) {
			t.Errorf("%s, Accept: got error %v, want %v with %q in it", tt.name, got.err, verbs.ErrInvalid, tt.text)
		}
	}
}

// TestOneCQ has one CQ for both queues, with room for the completions of both.
func TestOneCQ(t *testing.T) {
	p := newPair(t)
	var in, back *verbs.MR
	c := &rdmacm.Config{OneCQ: true, Setup: inbox(&back, 8)}
	c.QP.Cap = verbs.QPCap{MaxSendWR: 5, MaxRecvWR: 30, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 8}
	x, y := p.connect(t, c, &rdmacm.Config{Setup: inbox(&in, 8)})
	if x.SendCQ() != x.RecvCQ() {
		t.Fatal("got two CQs, want one")
	}
	_, granted, err := x.QP().Query()
	if err != nil {
		t.Fatal(err)
	}
	if room, want := x.SendCQ().Cap(), granted.Cap.MaxSendWR+granted.Cap.MaxRecvWR; room < want {
		t.Errorf("the CQ has room for %d completions, want %d and more", room, want)
	}
	if y.SendCQ() == y.RecvCQ() {
		t.Error("got one CQ without OneCQ, want two")
	}
	if _, err := x.QP().PostSend([]verbs.SendWR{{ID: 7, Op: verbs.OpSend, Flags: verbs.SendInline | verbs.SendSignaled, InlineData: []byte("hi")}}); err != nil {
		t.Fatal(err)
	}
	if wc := wait(t, x.SendCQ()); wc.ID != 7 {
		t.Errorf("got the completion of %d, want that of the SEND, 7", wc.ID)
	}
	if _, err := y.QP().PostSend([]verbs.SendWR{{Op: verbs.OpSend, SGList: []verbs.SGE{in.SGE(0, 2)}}}); err != nil {
		t.Fatal(err)
	}
	if wc := wait(t, x.SendCQ()); wc.Op != verbs.WCRecv {
		t.Errorf("got a completion of %v, want that of the receive", wc.Op)
	}
	if err := errors.Join(back.Close(), x.Close(), p.a.Close()); err != nil { // nothing is left
		t.Error(err)
	}
	cq, err := p.b.CreateCQ(8)
	if err != nil {
		t.Fatal(err)
	}
	for _, qp := range []verbs.QPInitAttr{{SendCQ: cq}, {RecvCQ: cq}} {
		_, err := (&rdmacm.Dialer{Devices: []*verbs.Device{p.b}}).Dial(t.Context(), addr(t, p.b, false, 1), &rdmacm.Config{OneCQ: true, QP: qp})
		if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "Config.OneCQ") {
			t.Errorf("OneCQ and a CQ: got error %v, want %v that names Config.OneCQ", err, verbs.ErrInvalid)
		}
	}
}

// TestCQOfSRQ: the receive CQ of a QP with an SRQ has room for all receives of the SRQ. With the 2
// entries that it had, the third message failed the connection.
func TestCQOfSRQ(t *testing.T) {
	for _, one := range []bool{false, true} {
		p := newPair(t)
		pd, err := p.b.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		srq, err := pd.CreateSRQ(verbs.SRQAttr{MaxWR: 50, MaxSGE: 1})
		if err != nil {
			t.Fatal(err)
		}
		has, err := srq.Query()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := srq.PostRecv(make([]verbs.RecvWR, has.MaxWR)); err != nil {
			t.Fatal(err)
		}
		x, y := p.connect(t, nil, &rdmacm.Config{PD: pd, OneCQ: one, QP: verbs.QPInitAttr{SRQ: srq}})
		for range has.MaxWR {
			if _, err := x.QP().PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled}}); err != nil {
				t.Fatal(err)
			}
			wait(t, x.SendCQ())
		}
		for range has.MaxWR {
			wait(t, y.RecvCQ())
		}
		if err := y.Cause(); err != nil {
			t.Errorf("the connection has ended: %v", err)
		}
	}
}

package verbs_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// errorHas reports whether err has the text or, for an empty text, is nil.
func errorHas(err error, text string) bool {
	if text == "" {
		return err == nil
	}
	return err != nil && strings.Contains(err.Error(), text)
}

// wantErr fails the test unless err is of the kind and has every one of the texts. It must be
// an OpError, as every error of a verb is.
func wantErr(t *testing.T, what string, err, kind error, texts ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%s: %v, want an error that is %q", what, err, kind)
		return
	}
	if _, ok := errors.AsType[*verbs.OpError](err); !ok {
		t.Errorf("%s: %v is a %T, want an OpError", what, err, err)
	}
	for _, s := range texts {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%s: %q does not say %q, want it said", what, err, s)
		}
	}
}

// wantPanic fails the test unless f panics with every one of the texts.
func wantPanic(t *testing.T, what string, f func(), texts ...string) {
	t.Helper()
	defer func() {
		t.Helper()
		v := recover()
		if v == nil {
			t.Errorf("%s does not panic, want a panic", what)
			return
		}
		s, _ := v.(string)
		if err, ok := v.(error); ok {
			s = err.Error()
		}
		for _, text := range texts {
			if !strings.Contains(s, text) {
				t.Errorf("%s panics with %q, which does not say %q, want it said", what, s, text)
			}
		}
	}()
	f()
}

// spin yields until f is true, for conditions without an event.
func spin(t testing.TB, what string, f func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rdmatest.Patience)
	defer cancel()
	for !f() {
		if ctx.Err() != nil {
			t.Fatalf("waited %v in vain for %s", rdmatest.Patience, what)
		}
		runtime.Gosched()
	}
}

// must stops the test on an error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// device is a device on a network of its own.
func device(t testing.TB) *verbs.Device { return rdmatest.New(t).Device() }

// pair is two connected endpoints on devices of their own.
func pair(t testing.TB, options ...rdmatest.Options) (x, y *rdmatest.Endpoint) {
	t.Helper()
	net := rdmatest.New(t)
	return rdmatest.Connect(t, net.Device(), net.Device(), options...)
}

// newQP makes a QP in RESET with all that it needs.
func newQP(t testing.TB, d *verbs.Device, c verbs.QPCap) *verbs.QP {
	t.Helper()
	pd := must(d.AllocPD())(t)
	cq := must(d.CreateCQ(256))(t)
	return must(pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: c}))(t)
}

// gid is the device's first GID.
func gid(t testing.TB, d *verbs.Device) verbs.GID {
	t.Helper()
	return must(d.GID(1, 0))(t).GID
}

// nothing fails the test if a completion waits. The caller has waited for everything that could still
// make one.
func nothing(t testing.TB, e *rdmatest.Endpoint) {
	t.Helper()
	var wcs [1]verbs.WC
	if n, err := e.CQ.Poll(wcs[:]); n != 0 || err != nil {
		t.Errorf("completion %+v, %v; want none", wcs[0], err)
	}
}

// nextEvent waits for the device's next asynchronous event.
func nextEvent(t testing.TB, d *verbs.Device) verbs.AsyncEvent {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rdmatest.Patience)
	defer cancel()
	return must(d.NextEvent(ctx))(t)
}

// write and read are work requests that make a completion.
func write(id uint64, sge verbs.SGE, to verbs.RemoteAddr) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{sge}, Remote: to}
}

func read(id uint64, sge verbs.SGE, from verbs.RemoteAddr) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpRDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{sge}, Remote: from}
}

func send(id uint64, sges ...verbs.SGE) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: sges}
}

func recv(id uint64, sges ...verbs.SGE) verbs.RecvWR { return verbs.RecvWR{ID: id, SGList: sges} }

package soft_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// recorder hands each record's device and message on.
type recorder struct {
	slog.Handler
	device string
	got    chan string
}

func (r recorder) Enabled(context.Context, slog.Level) bool { return true }

func (r recorder) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		if a.Key == "device" {
			r.device = a.Value.String()
		}
	}
	return r
}

func (r recorder) Handle(_ context.Context, rec slog.Record) error {
	select {
	case r.got <- r.device + ": " + rec.Message:
	default:
	}
	return nil
}

// verbs.SetLogger is about the devices that are open, and about those that are opened later.
func TestSetLogger(t *testing.T) {
	r := recorder{got: make(chan string, 100)}
	defer verbs.SetLogger(nil)
	for _, first := range []bool{true, false} {
		if first {
			verbs.SetLogger(slog.New(r))
		} else {
			verbs.SetLogger(nil)
		}
		dev, err := verbs.Open("soft_lo@127.0.0.9")
		if err != nil {
			t.Fatal(err)
		}
		if !first {
			verbs.SetLogger(slog.New(r))
		}
		pd, err := dev.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		cq, err := dev.CreateCQ(1)
		if err != nil {
			t.Fatal(err)
		}
		qp, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq})
		if err != nil {
			t.Fatal(err)
		}
		if err := qp.Init(1, 0); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-r.got:
			if want := "soft_lo@127.0.0.9: QP changed its state"; got != want {
				t.Errorf("logger set first: %v: logged %q, want %q", first, got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("logger set first: %v: nothing is logged", first)
		}
		for _, c := range []interface{ Close() error }{qp, cq, pd, dev} {
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
		for len(r.got) > 0 {
			<-r.got
		}
	}
}

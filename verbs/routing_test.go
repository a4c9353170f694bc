package verbs_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestAdaptiveRouting: RC QPs take it in any state, others do not, and values that cannot be are refused.
func TestAdaptiveRouting(t *testing.T) {
	dev := rdmatest.New(t).Device()
	pd, cq := must(dev.AllocPD())(t), must(dev.CreateCQ(8))(t)
	for typ, want := range map[verbs.QPType]error{verbs.QPTypeRC: nil, verbs.QPTypeUC: verbs.ErrUnsupported, verbs.QPTypeUD: verbs.ErrUnsupported} {
		qp := must(pd.CreateQP(verbs.QPInitAttr{Type: typ, SendCQ: cq, RecvCQ: cq}))(t)
		for _, r := range []verbs.AdaptiveRouting{{}, {Send: true}, {Paths: verbs.MaxRoutingPaths}, {Accept: true, Mark: 0x3f7f, Patience: verbs.MaxRoutingPatience}} {
			if err := qp.SetAdaptiveRouting(r); !errors.Is(err, want) {
				t.Errorf("%v, %+v: %v, want %v", typ, r, err, want)
			}
		}
		for _, r := range []verbs.AdaptiveRouting{{Mark: 0x80}, {Mark: 0x4000}, {Paths: -1}, {Paths: verbs.MaxRoutingPaths + 1}, {Patience: -1}, {Patience: verbs.MaxRoutingPatience + 1}} {
			if err := qp.SetAdaptiveRouting(r); !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("%v, %+v: %v, want ErrInvalid", typ, r, err)
			}
		}
		qp.Close()
		if err := qp.SetAdaptiveRouting(verbs.AdaptiveRouting{}); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("%v, closed: %v, want ErrClosed", typ, err)
		}
	}
}

// TestParseAdaptiveRouting: what command lines may say, and what not.
func TestParseAdaptiveRouting(t *testing.T) {
	const mark, patience = verbs.DefaultRoutingMark, verbs.DefaultRoutingPatience
	for s, want := range map[string]verbs.AdaptiveRouting{
		"send":                            {Send: true, Mark: mark, Paths: 1, Patience: patience},
		"accept,send":                     {Send: true, Accept: true, Mark: mark, Paths: 1, Patience: patience},
		"accept,mark=0x20,patience=250us": {Accept: true, Mark: 0x20, Paths: 1, Patience: 250 * time.Microsecond},
		"mark=0x1000":                     {Mark: 0x1000, Paths: 1, Patience: patience},
		"paths=4,send":                    {Send: true, Mark: mark, Paths: 4, Patience: patience},
	} {
		if got, err := verbs.ParseAdaptiveRouting(s); got != want || err != nil {
			t.Errorf("%q parses to %+v, %v; want %+v", s, got, err, want)
		}
	}
	if _, err := verbs.ParseAdaptiveRouting("send,paths=0"); err == nil || !strings.Contains(err.Error(), `"paths=0": paths are 1 to 8`) {
		t.Errorf("paths=0: %v, want what was said, and the range", err)
	}
	for _, s := range []string{"", "spray", "send,", "send=0", "accept=false", "mark", "mark=", "mark=0x80", "mark=0x8000", "mark=65536", "patience=1", "patience=1h", "paths", "paths=0", "paths=-1", "paths=9", "paths=many"} {
		if got, err := verbs.ParseAdaptiveRouting(s); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%q parses to %+v, %v; want ErrInvalid", s, got, err)
		}
	}
}

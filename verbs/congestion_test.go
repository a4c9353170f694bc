package verbs_test

import (
	"errors"
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestCongestionControl: QPs take the congestion controls that their type allows, in any state.
func TestCongestionControl(t *testing.T) {
	dev := rdmatest.New(t).Device()
	pd, cq := must(dev.AllocPD())(t), must(dev.CreateCQ(8))(t)
	kinds := []verbs.CongestionControl{verbs.CongestionWindow, verbs.CongestionDCQCN, verbs.CongestionDelay, 3}
	for typ, want := range map[verbs.QPType][]error{
		verbs.QPTypeRC: {nil, nil, nil, verbs.ErrInvalid},
		verbs.QPTypeUC: {nil, nil, verbs.ErrUnsupported, verbs.ErrInvalid},
		verbs.QPTypeUD: {verbs.ErrUnsupported, verbs.ErrUnsupported, verbs.ErrUnsupported, verbs.ErrInvalid},
	} {
		qp := must(pd.CreateQP(verbs.QPInitAttr{Type: typ, SendCQ: cq, RecvCQ: cq}))(t)
		for i, c := range kinds {
			if err := qp.SetCongestionControl(c); !errors.Is(err, want[i]) {
				t.Errorf("%v, %v: %v, want %v", typ, c, err, want[i])
			}
		}
		qp.Close()
		if err := qp.SetCongestionControl(verbs.CongestionWindow); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("%v, closed: %v, want ErrClosed", typ, err)
		}
	}
	for _, c := range kinds[:3] {
		if got, err := verbs.ParseCongestionControl(c.String()); got != c || err != nil {
			t.Errorf("%v parses to %v, %v, want the same", c, got, err)
		}
	}
	if got := kinds[3].String(); got != "CONGESTION_CONTROL(3)" {
		t.Errorf("a kind that there is not is %q, want CONGESTION_CONTROL(3)", got)
	}
	if _, err := verbs.ParseCongestionControl("bbr"); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("bbr parses with %v, want ErrInvalid", err)
	}
}

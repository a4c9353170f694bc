package soft

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// A file names a domain of one open device. The device that another Open returns has none of it.
func TestXRCDOfAnotherOpen(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "domain"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var devs [2]*verbs.Device
	for i := range devs {
		if devs[i], err = verbs.Open("soft_lo@127.0.88.41"); err != nil {
			t.Fatal(err)
		}
		defer devs[i].Close()
	}
	one, err := devs[0].OpenXRCD(verbs.XRCDAttr{File: file, Create: true})
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	again, err := devs[0].OpenXRCD(verbs.XRCDAttr{File: file})
	if err != nil {
		t.Errorf("the same device: got %v, want the domain", err)
	} else {
		again.Close()
	}
	if x, err := devs[1].OpenXRCD(verbs.XRCDAttr{File: file}); !errors.Is(err, verbs.ErrNotFound) || !strings.Contains(err.Error(), "set Create to make one") {
		t.Errorf("another Open: got %v, %v; want ErrNotFound, and what to do", x, err)
	}
}

// The list of a device's objects has the number and the CQ of an XRC SRQ, and neither of another.
func TestXRCResources(t *testing.T) {
	dev, err := verbs.Open("soft_lo@127.0.88.41")
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	defer pd.Close()
	cq, err := dev.CreateCQ(4)
	if err != nil {
		t.Fatal(err)
	}
	defer cq.Close()
	domain, err := dev.OpenXRCD(verbs.XRCDAttr{})
	if err != nil {
		t.Fatal(err)
	}
	defer domain.Close()
	xrc, err := domain.CreateSRQ(pd, cq, verbs.SRQAttr{MaxWR: 3, MaxSGE: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer xrc.Close()
	plain, err := pd.CreateSRQ(verbs.SRQAttr{MaxWR: 3, MaxSGE: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	r, err := dev.Resources()
	if err != nil {
		t.Fatal(err)
	}
	if len(r.SRQ) != 2 || len(r.CQ) != 1 {
		t.Fatalf("got %d SRQs and %d CQs, want 2 and 1", len(r.SRQ), len(r.CQ))
	}
	var found verbs.SRQInfo
	for _, i := range r.SRQ {
		if i.Num == xrc.Num() {
			found = i
		} else if i.Num != 0 || i.CQ != "" {
			t.Errorf("got %+v, want no number and no CQ", i)
		}
	}
	if found.CQ != r.CQ[0].Name {
		t.Errorf("got %+v, want an SRQ of the number %v with the CQ %q", r.SRQ, xrc.Num(), r.CQ[0].Name)
	}
}

// A target has a CQ of its own, which no program knows. Its end takes no events of others away.
func TestXRCTargetCloseKeepsEvents(t *testing.T) {
	dev, err := verbs.Open("soft_lo@127.0.88.41")
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	pd, err := dev.AllocPD()
	must(err)
	defer pd.Close()
	cq, err := dev.CreateCQ(4)
	must(err)
	defer cq.Close()
	domain, err := dev.OpenXRCD(verbs.XRCDAttr{})
	must(err)
	defer domain.Close()
	target, err := domain.CreateQP(verbs.QPInitAttr{})
	must(err)
	qp, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}})
	must(err)
	defer qp.Close()
	gid, err := dev.GID(1, 0)
	must(err)
	must(qp.Init(1, 0))
	must(qp.RTR(verbs.Peer{QPN: qp.QPN(), GID: gid.GID}, verbs.Path{}))
	must(qp.RTS(0, verbs.DefaultRetry))
	// Nothing is posted, so the queue has drained and the event waits.
	must(qp.Modify(&verbs.QPAttr{State: verbs.QPStateSQD, EnSQDAsyncNotify: true}, verbs.MaskState|verbs.MaskEnSQDAsyncNotify))
	must(target.Close())
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if ev, err := dev.NextEvent(ctx); err != nil || ev.Type != verbs.EventSQDrained || ev.QP != qp {
		t.Errorf("got %+v, %v; want %v of the QP", ev, err, verbs.EventSQDrained)
	}
}

package verbs_test

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/verbs"
)

// gsiQP makes QP1 of a device.
func gsiQP(t testing.TB, d *verbs.Device) (*verbs.PD, verbs.QPInitAttr, *verbs.GSI) {
	t.Helper()
	pd, cq := must(d.AllocPD())(t), must(d.CreateCQ(8))(t)
	return pd, verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}}, must(d.GSI())(t)
}

func TestGSIQP(t *testing.T) {
	d := device(t)
	pd, attr, g := gsiQP(t, d)
	if g.Device() != d {
		t.Error("a GSI of another device")
	}
	rc := attr
	rc.Type = verbs.QPTypeRC
	_, err := g.CreateQP(pd, rc)
	wantErr(t, "an RC QP1", err, verbs.ErrInvalid, "create qp1 in pd 1", "QPT_RC")
	_, err = g.CreateQP(nil, attr)
	wantErr(t, "QP1 without PD", err, verbs.ErrInvalid)
	_, err = g.CreateQP(must(device(t).AllocPD())(t), attr)
	wantErr(t, "QP1 in another device's PD", err, verbs.ErrInvalid)

	qp := must(g.CreateQP(pd, attr))(t)
	if qp.QPN() != verbs.GSIQPN || qp.Type() != verbs.QPTypeUD {
		t.Errorf("QPN %v, type %v; want 1 and QPT_UD", qp.QPN(), qp.Type())
	}
	_, err = g.CreateQP(pd, attr)
	wantErr(t, "a second QP1", err, verbs.ErrBusy, "QP1")
	wantErr(t, "closing its PD", pd.Close(), verbs.ErrBusy, "qp 0x000001")
	init := func(key verbs.QKey) error {
		return qp.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: key}, verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey)
	}
	wantErr(t, "another Q_Key", init(7), verbs.ErrInvalid, "0x80010000")
	check(t, init(verbs.GSIQKey))
	check(t, qp.Close())
	check(t, must(g.CreateQP(pd, attr))(t).Close())

	wantErr(t, "NotifyCommEst of a UD QP", must(g.CreateQP(pd, attr))(t).NotifyCommEst(func() {}), verbs.ErrUnsupported)
}

func TestClaimService(t *testing.T) {
	d := device(t)
	g := must(d.GSI())(t)
	const service = 0x1060000 + 7471
	release := must(g.ClaimService(0, service))(t)
	_, err := g.ClaimService(0, service)
	wantErr(t, "a second claim", err, verbs.ErrBusy, "claim service 0x0000000001061d2f on device sim0", "address in use")
	other := must(g.ClaimService(1, service))(t) // at another address
	_, err = g.ClaimService(100, service)
	wantErr(t, "a claim at a free GID index", err, verbs.ErrNotFound)
	release()
	again := must(g.ClaimService(0, service))(t)
	release() // a second time, which does not end the later claim
	_, err = g.ClaimService(0, service)
	wantErr(t, "a claim after another's release", err, verbs.ErrBusy)
	other()
	wantErr(t, "closing the device", d.Close(), verbs.ErrBusy, "service 0x0000000001061d2f")
	again()
	base, bits := commIDs(t, g)
	if base2, _ := commIDs(t, g); bits != 20 || base == 0 || base<<12 != 0 || base2 != base {
		t.Errorf("communication IDs from %#x, then %#x, of %d bits; want one base that is not 0, with 20 bits of 0 behind", base, base2, bits)
	}
	check(t, d.Close())
	_, err = d.GSI()
	wantErr(t, "the GSI of a closed device", err, verbs.ErrClosed)
	_, err = g.ClaimService(0, service)
	wantErr(t, "a claim on a closed device", err, verbs.ErrClosed)
	_, _, err = g.CommIDs()
	wantErr(t, "communication IDs of a closed device", err, verbs.ErrClosed)
}

func commIDs(t testing.TB, g *verbs.GSI) (base uint32, bits int) {
	t.Helper()
	base, bits, err := g.CommIDs()
	check(t, err)
	return base, bits
}

// A device whose kernel has QP1 says so.
func TestNoGSI(t *testing.T) {
	d := verbs.NewDevice(struct{ verbs.ProviderDevice }{device(t).Provider()})
	_, err := d.GSI()
	wantErr(t, "the GSI", err, verbs.ErrUnsupported, "QP1")
}

// NotifyCommEst tells of the peer's first request, whether it is called before or after the request.
func TestNotifyCommEst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := pair(t)
		var heard []string
		hear := func(qp *verbs.QP, name string) {
			t.Helper()
			check(t, qp.NotifyCommEst(func() { heard = append(heard, name) }))
		}
		want := func(names ...string) {
			t.Helper()
			if synctest.Wait(); !slices.Equal(heard, names) {
				t.Errorf("heard %q, want %q", heard, names)
			}
		}
		hear(y.QP, "taken back")
		check(t, y.QP.NotifyCommEst(nil))
		hear(y.QP, "replaced")
		hear(y.QP, "before")
		hear(x.QP, "of answers")
		want()
		x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled})
		x.Done()
		want("before")
		hear(y.QP, "after")
		want("before", "after")
		x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled})
		x.Done()
		want("before", "after")
		// After RESET the next request counts as the first.
		check(t, y.QP.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
		hear(y.QP, "reset")
		check(t, y.QP.Close())
		want("before", "after")
		wantErr(t, "NotifyCommEst of a closed QP", y.QP.NotifyCommEst(nil), verbs.ErrClosed)
		noEvent(t, y)
	})
}

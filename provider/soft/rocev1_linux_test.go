//go:build !adverb_portable

package soft_test

import (
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
	"github.com/adverb-rdma/adverb/verbs/verbstest"
)

// openV1 opens a device with GIDs of RoCEv1, and skips the test without privileges.
func openV1(t testing.TB, name string) *verbs.Device {
	t.Helper()
	d, err := verbs.Open(name)
	if errors.Is(err, syscall.EPERM) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// TestRoCEv1Loopback runs the suite over RoCEv1 on the loopback interface, where a process has an address for itself.
func TestRoCEv1Loopback(t *testing.T) {
	t.Setenv("ADVERB_ROCEV1", "first")
	verbstest.Run(t, verbstest.Config{
		Open: func(t testing.TB) (a, b *verbs.Device) {
			return openV1(t, "soft_lo@"+loopAddr(61)), openV1(t, "soft_lo@"+loopAddr(62))
		},
	})
}

// TestRoCEv1Table: GIDs of RoCEv1 stand where the variable says. At one of them a second program, or device, opens nothing.
func TestRoCEv1Table(t *testing.T) {
	name := "soft_lo@" + loopAddr(63)
	addr := netip.MustParseAddr(loopAddr(63))
	for value, want := range map[string][]verbs.GIDType{
		"0": {verbs.GIDTypeRoCEv2}, "1": {verbs.GIDTypeRoCEv2, verbs.GIDTypeRoCEv1}, "first": {verbs.GIDTypeRoCEv1, verbs.GIDTypeRoCEv2},
	} {
		t.Setenv("ADVERB_ROCEV1", value)
		d := openV1(t, name)
		es, err := d.GIDs(1)
		if err != nil || len(es) != len(want) {
			t.Fatalf("%s: %v, %v, want %v", value, es, err, want)
		}
		for i, e := range es {
			if e.Type != want[i] || e.GID.Addr() != addr || e.Index != i {
				t.Errorf("%s: GID %d is %+v, want %v of %v", value, i, e, want[i], addr)
			}
		}
	}
	t.Setenv("ADVERB_ROCEV1", "first")
	connect := func(d *verbs.Device) (err error) {
		pd, err := d.AllocPD()
		if err != nil {
			return err
		}
		defer pd.Close()
		cq, err := d.CreateCQ(1)
		if err != nil {
			return err
		}
		defer cq.Close()
		qp, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq})
		if err != nil {
			return err
		}
		defer qp.Close()
		if err := qp.Init(1, 0); err != nil {
			return err
		}
		return qp.RTR(verbs.Peer{QPN: 1, GID: verbs.GIDFromAddr(addr)}, verbs.Path{})
	}
	first, second := openV1(t, name), openV1(t, name)
	if err := connect(first); err != nil {
		t.Fatal(err)
	}
	if err := connect(second); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "RoCEv1's addresses are not shared") {
		t.Errorf("a second device: %v, want that the first has the address", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := connect(second); err != nil {
		t.Errorf("once the first is closed: %v", err)
	}
}

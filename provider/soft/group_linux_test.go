//go:build !adverb_portable

package soft_test

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/verbs"
)

// envGroup makes TestGroupAfterMTUInside run. It needs a network namespace of its own.
const envGroup = "ADVERB_TEST_GROUP"

// A UD QP receives datagrams for its group also after the interface's MTU was too small for IPv6 for a time, by
// which Linux ends memberships along with addresses.
func TestGroupAfterMTU(t *testing.T) {
	runInOwnNetwork(t, "TestGroupAfterMTUInside", envGroup)
}

func TestGroupAfterMTUInside(t *testing.T) {
	if os.Getenv(envGroup) == "" {
		t.Skip("TestGroupAfterMTU runs this one")
	}
	const name = "shrinks"
	defer unix.Close(makeNetdev(t, name, unix.IFF_TUN))
	ifi := must(net.InterfaceByName(name))
	at, group := netip.MustParseAddr("fd47::9:1"), verbs.GIDFromAddr(netip.MustParseAddr("ff12::47"))
	setAddress(t, ifi, at, true)
	d := must(verbs.Open("soft_" + name + "@" + at.String()))
	defer d.Close()
	pd, cq := must(d.AllocPD()), must(d.CreateCQ(8))
	qp := must(pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeUD, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}}))
	check(qp.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: 7}, verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey))
	check(qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR}, verbs.MaskState))
	check(qp.RTS(1, verbs.Retry{}))
	check(qp.AttachMcast(group))
	ah, mr := must(pd.CreateAH(verbs.AHAttr{DGID: group})), must(pd.AllocMR(verbs.GRHSize, verbs.AccessLocalWrite))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	// The kernel takes a moment to use an address that has just come, so one datagram may be lost.
	message := func(when string) {
		t.Helper()
		check(qp.PostOneRecv(1, mr.SGE(0, verbs.GRHSize)))
		for {
			check(qp.PostOneSend(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, AH: ah, RemoteQPN: 0xffffff, RemoteQKey: 7}))
			again, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			for {
				var wcs [1]verbs.WC
				if n, _ := cq.Wait(again, wcs[:]); n == 0 {
					break
				} else if check(wcs[0].Err()); wcs[0].Op == verbs.WCRecv {
					cancel()
					return
				}
			}
			if cancel(); ctx.Err() != nil {
				t.Fatalf("%s: no message to the group has come", when)
			}
		}
	}
	changed := func() {
		t.Helper()
		for {
			if e, err := d.NextEvent(ctx); err != nil {
				t.Fatal(err)
			} else if e.Type == verbs.EventGIDChange {
				return
			}
		}
	}
	mtu := func(n int) {
		b := make([]byte, unix.SizeofIfInfomsg)
		binary.NativeEndian.PutUint32(b[4:], uint32(ifi.Index))
		ae := netlink.NewAttributeEncoder()
		ae.Uint32(unix.IFLA_MTU, uint32(n))
		change(t, true, unix.RTM_NEWLINK, 0, b, ae)
	}
	message("at first")
	mtu(1000)
	changed()
	mtu(ifi.MTU)
	setAddress(t, ifi, at, true)
	changed()
	message("with its MTU and address back")
	check(qp.DetachMcast(group))
	check(qp.Close())
}

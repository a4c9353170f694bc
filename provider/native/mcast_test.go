//go:build linux && (amd64 || arm64)

package native

import (
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestMcastLID: a group of InfiniBand has a LID, and one of Ethernet has none, whatever the program says. What librdmacm
// tells on RoCE, 0xc000, does not count there.
func TestMcastLID(t *testing.T) {
	p := newPair(t, fake(t), fakeName)
	ud := func(port int) *verbs.QP {
		q := must(p.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeUD, SendCQ: p.cq, RecvCQ: p.cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxSendSGE: 1}}))(t)
		if port != 0 {
			check(t, q.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: port}, verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey))
		}
		return q
	}
	group, other := verbs.GID{0: 0xff, 1: 0x12, 15: 1}, verbs.GID{0: 0xff, 1: 0x12, 15: 2}

	ib := ud(ibPort)
	wantErr(t, "without a LID", ib.AttachMcast(group), verbs.ErrInvalid, "a group of InfiniBand has a LID", "AttachMcastLID")
	wantErr(t, "a port's LID", ib.AttachMcastLID(group, 0xbfff), verbs.ErrInvalid, "LID 0xbfff is none of groups")
	wantErr(t, "no LID", ib.AttachMcastLID(group, 0xffff), verbs.ErrInvalid, "LID 0xffff is none of groups")
	check(t, ib.AttachMcastLID(group, mlid))
	check(t, ib.AttachMcastLID(group, mlid))
	check(t, ib.AttachMcastLID(other, mlid)) // groups may share a LID
	wantErr(t, "another LID", ib.AttachMcastLID(group, mlid+1), verbs.ErrInvalid, "is attached to", "with LID 0xc005")
	wantErr(t, "close", ib.Close(), verbs.ErrBusy, "attached to 2 multicast groups")
	check(t, ib.DetachMcast(group))
	wantErr(t, "detach again", ib.DetachMcast(group), verbs.ErrInvalid, "is not attached")
	check(t, ib.DetachMcast(other))
	check(t, ib.Close())

	roce := ud(rocePort)
	check(t, roce.AttachMcastLID(group, 0xc000))
	check(t, roce.AttachMcast(group))
	check(t, roce.DetachMcast(group))
	check(t, roce.Close())

	reset := ud(0)
	wantErr(t, "in RESET", reset.AttachMcast(group), verbs.ErrState, "attach it from INIT on")
	check(t, reset.Close())
}

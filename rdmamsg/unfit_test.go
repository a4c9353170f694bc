package rdmamsg_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmamsg"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestUnfitQP: a QP that no channel can use is refused, and nothing is left of the attempt.
func TestUnfitQP(t *testing.T) {
	net := rdmatest.New(t)
	d := net.Device()
	pd, err := d.AllocPD()
	ok(t, err)
	cq, err := d.CreateCQ(1000)
	ok(t, err)
	srq, err := pd.CreateSRQ(verbs.SRQAttr{MaxWR: 100, MaxSGE: 1})
	ok(t, err)
	enough := (*rdmamsg.Config)(nil).QPCap()
	for name, attr := range map[string]verbs.QPInitAttr{
		"of another type":       {Type: verbs.QPTypeUC, Cap: enough},
		"with an SRQ":           {Cap: verbs.QPCap{MaxSendWR: enough.MaxSendWR, MaxSendSGE: 1}, SRQ: srq},
		"with an SRQ, and room": {Cap: enough, SRQ: srq},
		"without room":          {Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}},
	} {
		attr.SendCQ, attr.RecvCQ = cq, cq
		if attr.Type == 0 {
			attr.Type = verbs.QPTypeRC
		}
		qp, err := pd.CreateQP(attr)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if ch, err := rdmamsg.New(qp, nil); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("a QP %s: %v, want %v", name, err, verbs.ErrInvalid)
			if err == nil {
				ch.Close()
			}
		}
		ok(t, qp.Close())
	}
	ok(t, srq.Close())
	ok(t, cq.Close())
	ok(t, pd.Close()) // otherwise the PD would be busy
}

// TestNoChannelThere: Dial and Accept end where the peer's program connects and says nothing, or something else, and
// leave nothing behind.
func TestNoChannelThere(t *testing.T) {
	for _, tt := range []struct {
		name string
		said []byte
		want error
	}{{"silent", nil, context.DeadlineExceeded}, {"another protocol", []byte("GET /"), rdmamsg.ErrProtocol}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := rdmatest.New(t)
				from, at := net.Device(), net.Device()
				gid, err := at.GID(1, 0)
				ok(t, err)
				l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{at}}).Listen(netip.AddrPortFrom(gid.GID.Addr(), 0))
				ok(t, err)
				defer l.Close()
				go func() {
					r, err := l.Accept(t.Context())
					if err != nil {
						return
					}
					conn, err := r.Accept(t.Context(), nil)
					if err != nil {
						t.Error(err)
						return
					}
					defer conn.Close()
					if tt.said != nil {
						mr, err := conn.AllocMR(len(tt.said), 0)
						if err != nil {
							t.Error(err)
							return
						}
						copy(mr.Bytes(), tt.said)
						if err := conn.QP().PostOneSend(verbs.SendWR{Op: verbs.OpSend}, mr.SGE(0, len(tt.said))); err != nil {
							t.Error(err)
						}
					}
					<-conn.Disconnected()
				}()
				before, err := from.Resources()
				ok(t, err)
				const limit = time.Second
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				start := time.Now()
				c, err := rdmamsg.Dial(ctx, l.Addr(), &rdmamsg.Config{Dialer: &rdmacm.Dialer{Devices: []*verbs.Device{from}}})
				if c != nil || !errors.Is(err, tt.want) {
					t.Errorf("got a channel: %v, and error %v; want none, and %v", c != nil, err, tt.want)
				}
				if took := time.Since(start); took > 2*limit {
					t.Errorf("it took %v, want the context's %v and a moment", took, limit)
				}
				after, err := from.Resources()
				ok(t, err)
				if len(after.MR) > len(before.MR) || len(after.QP) > len(before.QP) || len(after.CQ) > len(before.CQ) {
					t.Errorf("%d regions, %d QPs and %d CQs are left; want %d, %d and %d as before", len(after.MR), len(after.QP), len(after.CQ), len(before.MR), len(before.QP), len(before.CQ))
				}
			})
		})
	}
}

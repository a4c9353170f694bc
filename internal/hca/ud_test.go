package hca_test

import (
	"context"
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// Datagrams of one post list reach each the peer of its own address handle, though they are as
// long and might go as one train.
func TestDatagramsToSeveralPeers(t *testing.T) {
	net := rdmatest.New(t)
	const peers = 3
	type end struct {
		pd *verbs.PD
		cq *verbs.CQ
		qp *verbs.QP
		mr *verbs.MR
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var ends [1 + peers]end
	var gids [1 + peers]verbs.GID
	for i := range ends {
		d, e := net.Device(), &ends[i]
		var err error
		e.pd, err = d.AllocPD()
		must(err)
		e.cq, err = d.CreateCQ(8)
		must(err)
		e.qp, err = e.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeUD, SendCQ: e.cq, RecvCQ: e.cq, Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8}})
		must(err)
		e.mr, err = e.pd.AllocMR(256, verbs.AccessLocalWrite)
		must(err)
		must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: 7}, verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey))
		must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR}, verbs.MaskState))
		must(e.qp.RTS(1, verbs.Retry{}))
		_, err = e.qp.PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{e.mr.SGE(0, 128)}}})
		must(err)
		g, err := d.GID(1, 0)
		must(err)
		gids[i] = g.GID
	}
	var wrs []verbs.SendWR
	for i := 1; i <= peers; i++ {
		ah, err := ends[0].pd.CreateAH(verbs.AHAttr{DGID: gids[i]})
		must(err)
		ends[0].mr.Bytes()[128+i] = byte(i)
		wrs = append(wrs, verbs.SendWR{Op: verbs.OpSend, SGList: []verbs.SGE{ends[0].mr.SGE(128+i, 1)},
			AH: ah, RemoteQPN: ends[i].qp.QPN(), RemoteQKey: 7})
	}
	_, err := ends[0].qp.PostSend(wrs)
	must(err)
	ctx, cancel := context.WithTimeout(t.Context(), rdmatest.Patience)
	defer cancel()
	for i := 1; i <= peers; i++ {
		var wc [1]verbs.WC
		_, err := ends[i].cq.Wait(ctx, wc[:])
		must(err)
		if got := ends[i].mr.Bytes()[verbs.GRHSize]; wc[0].Status != verbs.WCSuccess || got != byte(i) {
			t.Errorf("peer %d got %d, %v; want %d", i, got, wc[0].Err(), i)
		}
	}
}

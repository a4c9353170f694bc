package soft_test

import (
	"context"
	"fmt"
	"log"

	_ "github.com/adverb-rdma/adverb/provider/soft" // registers soft_lo, soft_eth0 …
	"github.com/adverb-rdma/adverb/verbs"
)

// Example is the program of the README: one end of a connection writes into the other's memory.
func Example() {
	dev := must(verbs.Open("soft_lo@127.0.77.1"))
	pd, cq, gid := must(dev.AllocPD()), must(dev.CreateCQ(8)), must(dev.GID(1, 0)).GID

	var qps [2]*verbs.QP
	for i := range qps {
		qps[i] = must(pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}}))
		check(qps[i].Init(1, verbs.AccessRemoteWrite))
	}
	for i, qp := range qps { // two processes would tell each other their QPN and GID
		check(qp.RTR(verbs.Peer{QPN: qps[1-i].QPN(), GID: gid}, verbs.Path{}))
		check(qp.RTS(0, verbs.DefaultRetry))
	}

	src := must(pd.AllocMR(64, verbs.AccessLocalWrite))
	dst := must(pd.AllocMR(64, verbs.AccessLocalWrite|verbs.AccessRemoteWrite))
	n := copy(src.Bytes(), "written by RDMA")
	must(qps[0].PostSend([]verbs.SendWR{{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{src.SGE(0, n)}, Remote: dst.Remote(0)}}))

	var wcs [1]verbs.WC
	must(cq.Wait(context.Background(), wcs[:]))
	check(wcs[0].Err())
	fmt.Printf("%s\n", dst.Bytes()[:n])
	// Output: written by RDMA
}

func must[T any](v T, err error) T { check(err); return v }

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

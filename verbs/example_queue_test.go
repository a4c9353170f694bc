package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	_ "github.com/adverb-rdma/adverb/provider/soft"
	"github.com/adverb-rdma/adverb/verbs"
)

// end is one end of the connections in the examples.
type end struct {
	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ
	qp  *verbs.QP
}

// connectEnds makes two QPs on the loopback interface's device and connects them. Two programs on two
// hosts would tell each other their QPNs and GIDs.
func connectEnds() (x, y *end) {
	dev := orDie(verbs.Open("soft_lo"))
	gid := orDie(dev.GID(1, 0)).GID
	for _, e := range []**end{&x, &y} {
		pd, cq := orDie(dev.AllocPD()), orDie(dev.CreateCQ(64))
		qp := orDie(pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{
			MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 64,
		}}))
		dieIf(qp.Init(1, verbs.AccessRemoteRead|verbs.AccessRemoteWrite))
		*e = &end{dev, pd, cq, qp}
	}
	dieIf(x.qp.RTR(verbs.Peer{QPN: y.qp.QPN(), GID: gid}, verbs.Path{}))
	dieIf(y.qp.RTR(verbs.Peer{QPN: x.qp.QPN(), GID: gid}, verbs.Path{}))
	dieIf(x.qp.RTS(0, verbs.DefaultRetry))
	dieIf(y.qp.RTS(0, verbs.DefaultRetry))
	return x, y
}

// next waits for one completion, which must be a success.
func (e *end) next() verbs.WC {
	var wcs [1]verbs.WC
	orDie(e.cq.Wait(context.Background(), wcs[:]))
	dieIf(wcs[0].Err())
	return wcs[0]
}

func orDie[T any](v T, err error) T { dieIf(err); return v }

func dieIf(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// A receive must be posted before the message comes, and must be long enough. Its completion says
// how long the message is.
func ExampleQP_PostRecv() {
	x, y := connectEnds()
	in := orDie(y.pd.AllocMR(1024, verbs.AccessLocalWrite))
	orDie(y.qp.PostRecv([]verbs.RecvWR{{ID: 7, SGList: []verbs.SGE{in.SGE(0, 1024)}}}))

	out := orDie(x.pd.AllocMR(1024, verbs.AccessLocalWrite))
	n := copy(out.Bytes(), "a message")
	orDie(x.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{out.SGE(0, n)}}}))

	wc := y.next()
	fmt.Printf("receive %d has %q\n", wc.ID, in.Bytes()[:wc.ByteLen])
	// Output: receive 7 has "a message"
}

// Only every eighth of these sends makes a completion. When it is polled, the places of all eight in
// the send queue are free again.
func ExampleQP_PostSend_unsignaled() {
	x, y := connectEnds()
	dst := orDie(y.pd.AllocMR(8, verbs.AccessLocalWrite|verbs.AccessRemoteWrite))
	const every = 8 // at most half of MaxSendWR, so that the queue never runs dry
	completions := 0
	for i := range 64 {
		wr := verbs.SendWR{
			ID: uint64(i), Op: verbs.OpRDMAWrite, Flags: verbs.SendInline,
			InlineData: []byte{byte(i)}, Remote: dst.Remote(i % 8),
		}
		if (i+1)%every == 0 {
			wr.Flags |= verbs.SendSignaled
		}
		orDie(x.qp.PostSend([]verbs.SendWR{wr}))
		if (i+1)%every == 0 {
			x.next()
			completions++
		}
	}
	fmt.Println(completions, "completions for 64 writes;", dst.Bytes())
	// Output: 8 completions for 64 writes; [56 57 58 59 60 61 62 63]
}

// A Wait whose context ends leaves its work request under way. The completion comes later, and the
// next Wait takes it. So the ID says which one it is.
func ExampleCQ_Wait_cancelled() {
	x, y := connectEnds()
	in := orDie(y.pd.AllocMR(64, verbs.AccessLocalWrite))
	orDie(y.qp.PostRecv([]verbs.RecvWR{{ID: 1, SGList: []verbs.SGE{in.SGE(0, 64)}}}))

	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	var wcs [1]verbs.WC
	_, err := y.cq.Wait(ctx, wcs[:])
	fmt.Println("cancelled:", errors.Is(err, context.DeadlineExceeded))

	orDie(x.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendInline, InlineData: []byte("late")}}))
	wc := y.next()
	fmt.Printf("receive %d, posted before, has %q\n", wc.ID, in.Bytes()[:wc.ByteLen])
	// Output:
	// cancelled: true
	// receive 1, posted before, has "late"
}

// A program that has other things to wait for arms the queue, polls once more, and selects.
func ExampleCQ_Notify() {
	x, y := connectEnds()
	in := orDie(y.pd.AllocMR(64, verbs.AccessLocalWrite))
	orDie(y.qp.PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{in.SGE(0, 64)}}}))
	orDie(x.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendInline, InlineData: []byte("event")}}))

	quit := make(chan struct{}) // of the program
	wcs := make([]verbs.WC, 8)
	for {
		dieIf(y.cq.Notify(false))
		n := orDie(y.cq.Poll(wcs)) // completions from before Notify need not raise the event
		if n > 0 {
			fmt.Printf("%s\n", in.Bytes()[:wcs[0].ByteLen])
			return
		}
		select {
		case <-y.cq.Events():
		case <-quit:
			return
		}
	}
	// Output: event
}

// A receiver that does not know the length in advance gets a small SEND with the address, key and
// length, and fetches the message itself when it has room. Package rdmamsg does this for large
// messages.
func Example_rendezvous() {
	x, y := connectEnds()
	in := orDie(y.pd.AllocMR(64, verbs.AccessLocalWrite))
	orDie(y.qp.PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{in.SGE(0, 64)}}}))

	large := orDie(x.pd.AllocMR(1<<20, verbs.AccessLocalWrite|verbs.AccessRemoteRead))
	copy(large.Bytes(), "one mebibyte")
	at := large.Remote(0)
	offer := fmt.Appendf(nil, "%d %d %d", at.VA, at.RKey, large.Len())
	orDie(x.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendInline, InlineData: offer}}))

	var from verbs.RemoteAddr
	var length int
	orDie(fmt.Sscan(string(in.Bytes()[:y.next().ByteLen]), &from.VA, &from.RKey, &length))
	room := orDie(y.pd.AllocMR(length, verbs.AccessLocalWrite))
	orDie(y.qp.PostSend([]verbs.SendWR{{Op: verbs.OpRDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{room.SGE(0, length)}, Remote: from}}))
	y.next()
	fmt.Printf("%s, %d bytes\n", room.Bytes()[:12], length)
	// Output: one mebibyte, 1048576 bytes
}

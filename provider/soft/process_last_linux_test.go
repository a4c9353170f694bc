//go:build !adverb_portable

package soft_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// envGuest makes the test binary a guest: a process that answers messages, and ends in the moment in which it sees the
// last. The variable's value is the device's name and how many messages there are.
const envGuest = "ADVERB_TEST_GUEST"

func init() { beChild(envGuest, guest) }

// exchanger is an end of a ping-pong, with one receive posted.
type exchanger struct {
	cq  *verbs.CQ
	qp  *verbs.QP
	mr  *verbs.MR
	wcs [1]verbs.WC
}

func newExchanger(pd *verbs.PD) *exchanger {
	e := &exchanger{cq: must(pd.Device().CreateCQ(8)), mr: must(pd.AllocMR(8, verbs.AccessLocalWrite))}
	e.qp = must(pd.CreateQP(verbs.QPInitAttr{SendCQ: e.cq, RecvCQ: e.cq, Cap: verbs.QPCap{MaxSendWR: 2, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1}}))
	check(e.qp.Init(1, 0))
	e.receive()
	return e
}

func (e *exchanger) connect(to verbs.QPN, gid verbs.GID) {
	check(e.qp.RTR(verbs.Peer{QPN: to, GID: gid}, verbs.Path{}))
	check(e.qp.RTS(0, verbs.DefaultRetry))
}

func (e *exchanger) receive() {
	must(e.qp.PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{e.mr.SGE(0, 8)}}}))
}

func (e *exchanger) send() {
	must(e.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, SGList: []verbs.SGE{e.mr.SGE(0, 8)}, Flags: verbs.SendSignaled}}))
}

// await polls until a number of completions have come.
func (e *exchanger) await(ctx context.Context, n int) error {
	for n > 0 && ctx.Err() == nil {
		got := must(e.cq.Poll(e.wcs[:]))
		if got > 0 && e.wcs[0].Status != verbs.WCSuccess {
			return e.wcs[0].Err()
		}
		n -= got
	}
	return ctx.Err()
}

// guest never returns. It closes nothing, as first programs do.
func guest(device string, messages int) {
	dev := must(verbs.Open(device))
	e := newExchanger(must(dev.AllocPD()))
	fmt.Println(uint32(e.qp.QPN()))
	var qpn uint32
	must(fmt.Fscan(os.Stdin, &qpn))
	e.connect(verbs.QPN(qpn), must(dev.GID(1, 0)).GID)
	for i := range messages {
		check(e.await(context.Background(), 1))
		if i == messages-1 {
			os.Exit(0)
		}
		e.receive()
		e.send()
		check(e.await(context.Background(), 1))
	}
}

// TestEndsWithLastMessage: a message that a program has taken is acknowledged, though the program ends in that moment.
func TestEndsWithLastMessage(t *testing.T) {
	for _, way := range []string{"lanes", "network"} {
		t.Run(way, func(t *testing.T) {
			map[string]func(*testing.T){"lanes": lanes, "network": noLanes}[way](t)
			device := loopback(t) + "@" + loopAddr(49)
			dev := must(verbs.Open(device))
			pd := must(dev.AllocPD())
			gid := must(dev.GID(1, 0)).GID
			for _, messages := range []int{1, 30} {
				for range 2 {
					g := startChild(fmt.Sprintf("%s=%s %d", envGuest, device, messages))
					e := newExchanger(pd)
					e.connect(must(g.qpn()), gid)
					fmt.Fprintln(g.in, uint32(e.qp.QPN()))
					for i := range messages {
						n := 2
						if i == messages-1 {
							n = 1
						}
						e.send()
						if err := e.await(t.Context(), n); err != nil {
							t.Errorf("message %d of %d: %v, want it to succeed", i+1, messages, err)
							break
						}
						e.receive()
					}
					g.in.Close()
					io.Copy(io.Discard, g.out)
					check(g.cmd.Wait())
					check(e.qp.Close())
					check(e.cq.Close())
					check(e.mr.Close())
				}
			}
			check(pd.Close())
			check(dev.Close())
		})
	}
}

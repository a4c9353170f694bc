package verbs_test

// The readers' questions about queues, completions and connections; see readers_test.go.

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// "The 512th work request fails when I do not poll; ibv_post_send returns 22. Can I recover by
// polling?" The error says what fills the queue. Polling helps if a completion is to come.
func TestReader512UnsignaledSends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := pair(t, rdmatest.Options{Cap: verbs.QPCap{MaxSendWR: 512, MaxSendSGE: 1, MaxRecvWR: 1}})
		src, dst := x.MR(8), y.MR(8)
		quiet := write(0, src.SGE(0, 8), dst.Remote(0))
		quiet.Flags = 0
		post := func(wr verbs.SendWR) error {
			_, err := x.QP.PostSend([]verbs.SendWR{wr})
			synctest.Wait() // each is done before the next
			return err
		}
		for range 511 {
			check(t, post(quiet))
		}
		check(t, post(write(512, src.SGE(0, 8), dst.Remote(0))))
		wantErr(t, "the 513th", post(quiet), verbs.ErrQueueFull, "the send queue is full: 512 work requests are in it (max_send_wr), of which 512 are done",
			"poll the send CQ, which frees a signaled work request's place and all before it")
		if wc := x.Done(); wc.ID != 512 {
			t.Errorf("completion %+v, want ID %v", wc, 512)
		}
		for range 512 { // the one poll has freed all 512 places
			check(t, post(quiet))
		}
		err := post(quiet)
		wantErr(t, "the 513th of unsignaled ones", err, verbs.ErrQueueFull, "all 512 work requests in it are unsignaled, so no completion can free them",
			"set SendSignaled on at least one work request in 512 and poll its completion")
		nothing(t, x)
		// What is left is to go through ERR, which completes them, or RESET, which drops them.
		check(t, x.QP.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
		check(t, y.QP.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
		connect(t, x.QP, y.QP)
		check(t, post(quiet))
	})
}

// "A list of work requests with one SGE each runs up against one less than max_sge, 32." The
// length of a list has nothing to do with max_sge, only with max_send_wr.
func TestReaderListLongerThanMaxSGE(t *testing.T) {
	x, y := pair(t, rdmatest.Options{Cap: verbs.QPCap{MaxSendWR: 1024, MaxSendSGE: 1, MaxRecvWR: 1}})
	if attr := must(x.Device.Query())(t); attr.MaxSGE != 32 {
		t.Errorf("max_sge %d, want 32", attr.MaxSGE)
	}
	src, dst := x.MR(8), y.MR(8)
	wrs := make([]verbs.SendWR, 1024)
	for i := range wrs {
		wrs[i] = write(uint64(i), src.SGE(0, 8), dst.Remote(0))
	}
	x.Send(wrs...)
	for i := range wrs {
		if wc := x.Done(); wc.ID != uint64(i) {
			t.Fatalf("completion %+v, want ID %v", wc, uint64(i))
		}
	}
}

// "Is there a way to do RDMA writes without using a completion queue?" Successes make no
// completion unless they are signaled. Failures always do.
func TestReaderNoCompletionButOnFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := pair(t)
		src, dst := x.MR(8), y.MR(8)
		wr := write(1, src.SGE(0, 8), dst.Remote(0))
		wr.Flags = 0
		x.Send(wr)
		synctest.Wait()
		nothing(t, x)
		wr.ID, wr.Remote = 2, dst.Remote(1)
		x.Send(wr)
		if wc := x.Next(); wc.ID != 2 || wc.Status != verbs.WCRemAccessErr {
			t.Errorf("completion %+v, want ID %v with %v", wc, 2, verbs.WCRemAccessErr)
		}
	})
}

// "Everything works fine on the first send, but ibv_post_recv fails on the 2nd time through the
// loop." Each receive takes one message; the next one is posted once the completion is polled.
func TestReaderPostReceiveInLoop(t *testing.T) {
	x, y := pair(t, rdmatest.Options{Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
	a, b := x.MR(8), y.MR(8)
	for i := range 200 { // a pingpong with queues of one
		y.Recv(recv(uint64(i), b.SGE(0, 8)))
		x.Recv(recv(uint64(i), a.SGE(0, 8)))
		a.Bytes()[0] = byte(i)
		x.Send(send(1000, a.SGE(0, 8)))
		if wc := y.Done(); wc.ID != uint64(i) || b.Bytes()[0] != byte(i) {
			t.Fatalf("round %d: %+v, want that ID and data", i, wc)
		}
		y.Send(send(1000, b.SGE(0, 8)))
		for range 2 {
			x.Done()
		}
		y.Done()
	}
}

// "The polling thread might not get to polling before we post receives on the main thread. Is it
// possible to lose completion events?" No: they stay in the queue.
func TestReaderPollingStartsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := pair(t)
		src, dst := x.MR(8), y.MR(8)
		for id := range uint64(20) {
			y.Recv(recv(id, dst.SGE(0, 8)))
			x.Send(send(id, src.SGE(0, 8)))
		}
		<-time.After(time.Hour) // of the bubble
		for id := range uint64(20) {
			if wc := y.Done(); wc.ID != id {
				t.Errorf("completion %+v, want ID %v", wc, id)
			}
		}
	})
}

// "My program hangs after ibv_post_send unless I introduce a delay before I poll." There is no
// such race here: posting and polling at once, many times over, loses nothing.
func TestReaderPollAtOnce(t *testing.T) {
	x, y := pair(t)
	src, dst := x.MR(8), y.MR(8)
	wrs, wcs := []verbs.SendWR{write(1, src.SGE(0, 8), dst.Remote(0))}, make([]verbs.WC, 1)
	for range 2000 {
		must(x.QP.PostSend(wrs))(t)
		spin(t, "a completion", func() bool { return must(x.CQ.Poll(wcs))(t) == 1 })
		check(t, wcs[0].Err())
	}
}

// "Did you bring the QP to RTS?" A SEND before the connection stands is an error, not a hang.
func TestReaderSendBeforeConnect(t *testing.T) {
	d := device(t)
	qp := newQP(t, d, verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1})
	peer := verbs.Peer{QPN: 5, GID: gid(t, d)}
	for _, step := range []func() error{
		func() error { return nil },
		func() error { return qp.Init(1, 0) },
		func() error { return qp.RTR(peer, verbs.Path{}) },
	} {
		check(t, step())
		_, err := qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend}})
		wantErr(t, "send", err, verbs.ErrState, fmt.Sprintf("the QP is in %v: sends need RTS (Modify, or Init, RTR and RTS)", qp.State()))
	}
	wantErr(t, "RTR again", qp.RTR(peer, verbs.Path{}), verbs.ErrState, "RTR->RTR", "from RTR a QP goes to RTS")
}

// "… and when the peer is not there?" The completion says so after the retries. A program cannot forget
// to ask for them: only a timeout of 0 waits without end.
func TestReaderPeerGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := rdmatest.New(t)
		x, y := rdmatest.Connect(t, net.Device(), net.Device())
		check(t, y.QP.Close())
		start := time.Now()
		x.Send(send(1))
		wc := x.Next()
		if !errors.Is(wc.Err(), verbs.WCRetryExceeded) || !errorHas(wc.Err(), "is it up, in RTR or RTS, reachable, and are QPN and GID its own?") ||
			!errorHas(wc.Err(), fmt.Sprintf("qp %v at gid ::ffff:10.0.0.2 did not acknowledge", y.QP.QPN())) {
			t.Errorf("completion with %v, want %v that names the peer", wc.Err(), verbs.WCRetryExceeded)
		}
		if took := time.Since(start); took < 8*67*time.Millisecond || took > 2*time.Second {
			t.Errorf("gave up after %v, want 8 times 67 ms to 2 s", took)
		}
	})
}

// "I want the server to wait for data forever, and the client to write to it repeatedly. What if
// the sender writes again before the receiver has processed the data?" Each write tells the
// server by an immediate, and goes when the server has said that the buffer is free.
func TestReaderRepeatedWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rounds, size = 100, 64
		client, server := pair(t, rdmatest.Options{Cap: verbs.QPCap{MaxSendWR: rounds, MaxRecvWR: 1, MaxSendSGE: 1}})
		src, dst := client.MR(size), server.MR(size)
		server.Recv(recv(0))
		go func() {
			var wcs [1]verbs.WC
			for i := range rounds {
				if _, err := server.CQ.Wait(t.Context(), wcs[:]); err != nil || wcs[0].Imm != uint32(i) || dst.Bytes()[size-1] != byte(i) {
					t.Errorf("round %d: %v, immediate %d, data %d; want the number of the round", i, err, wcs[0].Imm, dst.Bytes()[size-1])
				}
				if _, err := server.QP.PostRecv([]verbs.RecvWR{recv(0)}); err != nil {
					t.Error(err)
				}
				if _, err := server.QP.PostSend([]verbs.SendWR{{Op: verbs.OpSend}}); err != nil { // free again
					t.Error(err)
				}
			}
		}()
		for i := range rounds {
			fill(src, byte(i))
			client.Recv(recv(1))
			wr := write(2, src.SGE(0, size), dst.Remote(0))
			wr.Op, wr.Imm, wr.Flags = verbs.OpRDMAWriteWithImm, uint32(i), 0
			client.Send(wr)
			if wc := client.Done(); wc.ID != 1 {
				t.Errorf("completion %+v, want ID %v", wc, 1)
			}
		}
	})
}

// "READ and WRITE work, but ibv_post_send for atomic operations fails with EINVAL." The text says
// which of the many conditions is missed; what only the peer can know comes with the completion.
func TestReaderAtomicsFail(t *testing.T) {
	atomic := func(x *rdmatest.Endpoint, sge verbs.SGE, at verbs.RemoteAddr) verbs.SendWR {
		return verbs.SendWR{ID: 1, Op: verbs.OpAtomicFetchAdd, Flags: verbs.SendSignaled, SGList: []verbs.SGE{sge}, Remote: at, CompareAdd: 1}
	}
	x, y := pair(t)
	local, remote := x.MR(16), y.MR(16)
	_, err := x.QP.PostSend([]verbs.SendWR{atomic(x, local.SGE(0, 4), remote.Remote(0))})
	wantErr(t, "4 bytes", err, verbs.ErrInvalid, "an atomic returns 8 bytes, and SGList has room for 4")
	_, err = x.QP.PostSend([]verbs.SendWR{atomic(x, local.SGE(0, 8), remote.Remote(4))})
	wantErr(t, "alignment", err, verbs.ErrInvalid, "an atomic's remote address must be divisible by 8")

	const noAtomic = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	failed := func(what string, status verbs.WCStatus, texts ...string) {
		t.Helper()
		wc := x.Next()
		if wc.Status != status {
			t.Errorf("%s: %v, want %v", what, wc.Err(), status)
		}
		for _, s := range texts {
			if !errorHas(wc.Err(), s) {
				t.Errorf("%s: %q does not say %q, want it said", what, wc.Err(), s)
			}
		}
	}
	plain := must(y.PD.AllocMR(16, noAtomic))(t)
	x.Send(atomic(x, local.SGE(0, 8), plain.Remote(0)))
	failed("region without the flag", verbs.WCRemAccessErr, "the MR's remote access flags and its QP's access flags", "WR_ATOMIC_FETCH_AND_ADD of 8 bytes at va")

	x, y = pair(t)
	local, remote = x.MR(16), y.MR(16)
	check(t, y.QP.Modify(&verbs.QPAttr{Access: noAtomic}, verbs.MaskAccessFlags))
	x.Send(atomic(x, local.SGE(0, 8), remote.Remote(0)))
	failed("QP without the flag", verbs.WCRemInvReqErr, "an operation its QP does not take")

	x, y = pair(t, rdmatest.Options{Retry: verbs.Retry{MaxRDAtomic: rdmatest.Zero}})
	local, remote = x.MR(16), y.MR(16)
	x.Send(atomic(x, local.SGE(0, 8), remote.Remote(0)))
	failed("no outstanding READs or atomics allowed", verbs.WCLocQPOpErr, "MAX_QP_RD_ATOMIC is 0, which allows no READ or atomic")

	x, y = pair(t)
	readonly := must(x.PD.AllocMR(8, 0))(t)
	x.Send(atomic(x, readonly.SGE(0, 8), y.MR(8).Remote(0)))
	failed("local memory that may not be written", verbs.WCLocProtErr, "ACCESS_LOCAL_WRITE is needed")

	x, y = pair(t)
	odd := must(y.PD.RegMRIOVA(make([]byte, 24)[1:17], 0, rdmatest.Access))(t)
	x.Send(atomic(x, x.MR(8).SGE(0, 8), odd.Remote(0)))
	failed("memory on an odd address", verbs.WCRemAccessErr)
}

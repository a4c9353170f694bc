package verbs_test

import (
	"bytes"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestPostSendRefused posts lists whose third work request is one that PostSend refuses. The two before
// it are posted, and done.
func TestPostSendRefused(t *testing.T) {
	x, y := pair(t, rdmatest.Options{Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 1, MaxSendSGE: 3, MaxInlineData: 8}})
	src, dst := x.MR(64), y.MR(64)
	one, eight := []verbs.SGE{src.SGE(0, 1)}, []verbs.SGE{src.SGE(0, 8)}
	huge := []verbs.SGE{{Length: 1 << 31}, {Length: 1}}
	tests := []struct {
		name string
		wr   verbs.SendWR
		kind error
		text string
	}{
		{"unknown operation", verbs.SendWR{Op: 99}, verbs.ErrUnsupported, "WR(99) is no operation of a QPT_RC QP"},
		{"last opcode", verbs.SendWR{Op: 255}, verbs.ErrUnsupported, "WR(255) is no operation"},
		{"unknown flag", verbs.SendWR{Op: verbs.OpSend, Flags: 1 << 7}, verbs.ErrInvalid, "unknown send flags 0x80"},
		{"SGEs", verbs.SendWR{Op: verbs.OpSend, SGList: make([]verbs.SGE, 4)}, verbs.ErrLimit, "4 SGEs: the QP was created for 3 (max_send_sge)"},
		{"InlineData alone", verbs.SendWR{Op: verbs.OpSend, InlineData: []byte{1}}, verbs.ErrInvalid, "InlineData without SendInline"},
		{"inline data", verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendInline, InlineData: make([]byte, 9)}, verbs.ErrLimit, "9 bytes of inline data: the QP was created for 8 (max_inline_data)"},
		{"inline SGEs", verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendInline, SGList: []verbs.SGE{src.SGE(0, 8), src.SGE(0, 1)}}, verbs.ErrLimit, "9 bytes of inline data"},
		{"inline READ", verbs.SendWR{Op: verbs.OpRDMARead, Flags: verbs.SendInline, SGList: eight}, verbs.ErrInvalid, "WR_RDMA_READ takes no inline data"},
		{"inline atomic", verbs.SendWR{Op: verbs.OpAtomicFetchAdd, Flags: verbs.SendInline, SGList: eight}, verbs.ErrInvalid, "takes no inline data"},
		{"inline from nowhere", verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendInline, SGList: []verbs.SGE{{Addr: 1, Length: 1, LKey: 1}}}, verbs.ErrInvalid, "inline data: SGE 0: key 0x00000001: no such memory region"},
		{"message length", verbs.SendWR{Op: verbs.OpSend, SGList: huge}, verbs.ErrLimit, "a message of 2147483649 bytes: at most 2^31"},
		{"READ length", verbs.SendWR{Op: verbs.OpRDMARead, SGList: huge}, verbs.ErrLimit, "at most 2^31"},
		{"sum beyond 32 bits", verbs.SendWR{Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{{Length: math.MaxUint32}, {Length: math.MaxUint32}, {Length: 2}}}, verbs.ErrLimit, "a message of 8589934592 bytes"},
		{"atomic of 1 byte", verbs.SendWR{Op: verbs.OpAtomicCmpSwap, SGList: one}, verbs.ErrInvalid, "an atomic returns 8 bytes, and SGList has room for 1"},
		{"atomic of nothing", verbs.SendWR{Op: verbs.OpAtomicFetchAdd}, verbs.ErrInvalid, "room for 0"},
		{"addend in Swap", verbs.SendWR{Op: verbs.OpAtomicFetchAdd, SGList: eight, Remote: dst.Remote(0), Swap: 1}, verbs.ErrInvalid, "adds CompareAdd"},
		{"atomic address", verbs.SendWR{Op: verbs.OpAtomicFetchAdd, SGList: eight, Remote: dst.Remote(4)}, verbs.ErrInvalid, "must be divisible by 8"},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			good := write(uint64(i), src.SGE(0, 8), dst.Remote(0))
			n, err := x.QP.PostSend([]verbs.SendWR{good, good, tt.wr, good})
			if n != 2 {
				t.Errorf("posted %d, want 2", n)
			}
			wantErr(t, "PostSend", err, tt.kind, fmt.Sprintf("post send to qp %v: work request 2 of the list: ", x.QP.QPN()), tt.text)
			for range 2 {
				if wc := x.Done(); wc.ID != uint64(i) {
					t.Errorf("completion %+v, want ID %v", wc, uint64(i))
				}
			}
			nothing(t, x)
		})
	}
	n, err := x.QP.PostSend([]verbs.SendWR{{Op: 99}})
	if n != 0 {
		t.Errorf("posted %d, want 0", n)
	}
	wantErr(t, "PostSend", err, verbs.ErrUnsupported, "work request 0 of the list")
	if n, err := x.QP.PostSend(nil); n != 0 || err != nil {
		t.Errorf("posted %d of an empty list, %v; want 0 and no error", n, err)
	}
}

func TestPostRecvRefused(t *testing.T) {
	x, y := pair(t, rdmatest.Options{Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 2}})
	n, err := y.QP.PostRecv([]verbs.RecvWR{recv(1), recv(2), {ID: 3, SGList: make([]verbs.SGE, 3)}, recv(4)})
	if n != 2 {
		t.Errorf("posted %d, want 2", n)
	}
	wantErr(t, "PostRecv", err, verbs.ErrLimit, fmt.Sprintf("post receive to qp %v: work request 2 of the list: 3 SGEs", y.QP.QPN()), "(max_recv_sge)")
	n, err = y.QP.PostRecv([]verbs.RecvWR{recv(3), recv(4), recv(5), recv(6)})
	if n != 2 {
		t.Errorf("posted %d, want 2", n)
	}
	wantErr(t, "PostRecv", err, verbs.ErrQueueFull, "work request 2 of the list: the receive queue is full: 4 work requests", "of which 4 wait for messages")
	for id := range uint64(2) {
		x.Send(send(id))
		x.Done()
	}
	n, err = y.QP.PostRecv([]verbs.RecvWR{recv(5)})
	if n != 0 {
		t.Errorf("posted %d, want 0", n)
	}
	wantErr(t, "PostRecv", err, verbs.ErrQueueFull, "of which 2 wait for messages; poll the receive CQ, which frees the others")
	for id := range uint64(2) {
		if wc := y.Done(); wc.ID != 1+id {
			t.Errorf("completion %+v, want ID %v", wc, 1+id)
		}
	}
	y.Recv(recv(5), recv(6))
	// Of a list with a receive that has too many SGEs, the receives before it are posted if there is room.
	if n, err = y.QP.PostRecv([]verbs.RecvWR{recv(7), {SGList: make([]verbs.SGE, 3)}}); n != 0 {
		t.Errorf("posted %d, want 0: %v", n, err)
	}
	wantErr(t, "PostRecv", err, verbs.ErrQueueFull, "work request 0 of the list: ")
}

// When a list is too long for the queue, the work requests that fit are posted. If a later work
// request of the list is wrong as well, the error is that of the queue.
func TestPostListFillsQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := pair(t, rdmatest.Options{Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 1, MaxSendSGE: 1}})
		src, dst := x.MR(8), y.MR(8)
		var wrs []verbs.SendWR
		for id := range uint64(6) {
			wrs = append(wrs, write(id, src.SGE(0, 8), dst.Remote(0)))
		}
		n, err := x.QP.PostSend(wrs)
		if n != 4 {
			t.Fatalf("posted %d, want 4", n)
		}
		wantErr(t, "PostSend", err, verbs.ErrQueueFull, "work request 4 of the list: the send queue is full: 4 work requests are in it")
		for id := range uint64(4) {
			if wc := x.Done(); wc.ID != id {
				t.Errorf("completion %+v, want ID %v", wc, id)
			}
		}
		wrs[5].Op = 99
		n, err = x.QP.PostSend(wrs)
		if n != 4 {
			t.Fatalf("posted %d, want 4", n)
		}
		wantErr(t, "PostSend", err, verbs.ErrQueueFull, "work request 4 of the list: the send queue is full")
	})
}

// TestPostInEachState posts a send and a receive to a QP in each of its states.
func TestPostInEachState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := rdmatest.New(t)
		a, b := net.Device(), net.Device()
		x, _ := rdmatest.Connect(t, a, b)
		qp := must(x.PD.CreateQP(verbs.QPInitAttr{SendCQ: x.CQ, RecvCQ: x.CQ, Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1}}))(t)
		peer := newQP(t, b, verbs.QPCap{})
		check(t, peer.Init(1, rdmatest.Access))
		check(t, peer.RTR(verbs.Peer{QPN: qp.QPN(), GID: gid(t, a)}, verbs.Path{}))
		post := func(id uint64, sendOK, recvOK bool) {
			t.Helper()
			state := qp.State().String()
			n, err := qp.PostSend([]verbs.SendWR{{ID: id, Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}})
			if sendOK {
				check(t, err)
			} else if wantErr(t, "send in "+state, err, verbs.ErrState, "the QP is in "+state+": sends need RTS"); n != 0 {
				t.Errorf("posted %d, want 0", n)
			}
			n, err = qp.PostRecv([]verbs.RecvWR{recv(id + 100)})
			if recvOK {
				check(t, err)
			} else if wantErr(t, "receive in "+state, err, verbs.ErrState, "the QP is in "+state+": receives can be posted from INIT on"); n != 0 {
				t.Errorf("posted %d, want 0", n)
			}
			synctest.Wait()
		}
		post(0, false, false)
		check(t, qp.Init(1, 0))
		post(1, false, true)
		check(t, qp.RTR(verbs.Peer{QPN: peer.QPN(), GID: gid(t, b)}, verbs.Path{}))
		post(2, false, true)
		check(t, qp.RTS(0, verbs.DefaultRetry))
		post(3, true, true)
		if wc := x.Done(); wc.ID != 3 {
			t.Errorf("completion %+v, want ID %v", wc, 3)
		}
		check(t, qp.Modify(&verbs.QPAttr{State: verbs.QPStateSQD}, verbs.MaskState))
		post(4, true, true)
		nothing(t, x) // in SQD new work waits
		check(t, qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTS}, verbs.MaskState))
		if wc := x.Done(); wc.ID != 4 {
			t.Errorf("completion %+v, want ID %v", wc, 4)
		}
		check(t, qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
		for _, id := range []uint64{101, 102, 103, 104} { // receives are flushed in order
			if wc := x.Next(); wc.ID != id || wc.Status != verbs.WCFlushErr || wc.QPN != qp.QPN() {
				t.Errorf("completion %+v, want ID %v with %v", wc, id, verbs.WCFlushErr)
			}
		}
		post(5, true, true)
		for _, id := range []uint64{5, 105} {
			if wc := x.Next(); wc.ID != id || wc.Status != verbs.WCFlushErr {
				t.Errorf("completion %+v, want ID %v with %v", wc, id, verbs.WCFlushErr)
			}
		}
		check(t, qp.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
		post(6, false, false)
		nothing(t, x)
	})
}

// RESET drops posted work requests, without completions, and the QP can be connected again.
func TestResetAndReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := pair(t, rdmatest.Options{Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
		src, dst := x.MR(64), y.MR(64)
		for round := range 3 {
			fill(src, byte(round+1))
			for id := range uint64(4) {
				y.Recv(recv(id, dst.SGE(0, 64)))
			}
			x.Send(send(1, src.SGE(0, 64)))
			x.Done()
			if wc := y.Done(); wc.ID != 0 || !bytes.Equal(src.Bytes(), dst.Bytes()) {
				t.Errorf("round %d: %+v, % x; want ID 0 and the data that was sent", round, wc, dst.Bytes()[:4])
			}
			for _, qp := range []*verbs.QP{x.QP, y.QP} {
				check(t, qp.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
			}
			synctest.Wait()
			nothing(t, x)
			nothing(t, y)
			connect(t, x.QP, y.QP)
		}
	})
}

// Completions of work from before RESET, if they are polled after it, free no places in the queue.
func TestResetForgetsCompletions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := pair(t, rdmatest.Options{CQ: 16, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1}})
		for range 3 {
			for range 4 {
				y.Recv(recv(1))
				x.Send(send(1))
			}
			synctest.Wait()
			_, err := x.QP.PostSend([]verbs.SendWR{send(1)})
			wantErr(t, "PostSend", err, verbs.ErrQueueFull, "of which 4 are done")
			_, err = y.QP.PostRecv([]verbs.RecvWR{recv(1)})
			wantErr(t, "PostRecv", err, verbs.ErrQueueFull, "of which 0 wait for messages")
			for _, qp := range []*verbs.QP{x.QP, y.QP} {
				check(t, qp.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
			}
			for range 4 {
				x.Done()
				y.Done()
			}
			connect(t, x.QP, y.QP)
		}
	})
}

// A failure flushes the rest of the queue in order, unsignaled work requests included. Only the first
// completion has a cause.
func TestFailureFlushes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := pair(t)
		src, dst := x.MR(64), y.MR(64)
		var wrs []verbs.SendWR
		for id := range uint64(8) {
			wr := write(id, src.SGE(0, 8), dst.Remote(0))
			if id%2 == 1 {
				wr.Flags = 0
			}
			if id == 3 {
				wr.Remote.RKey ^= 1
			}
			wrs = append(wrs, wr)
		}
		x.Recv(recv(100))
		x.Send(wrs...)
		want := []struct {
			id     uint64
			status verbs.WCStatus
		}{{0, 0}, {2, 0}, {3, verbs.WCRemAccessErr}, {4, verbs.WCFlushErr}, {5, verbs.WCFlushErr}, {6, verbs.WCFlushErr}, {7, verbs.WCFlushErr}, {100, verbs.WCFlushErr}}
		for _, w := range want {
			wc := x.Next()
			if wc.ID != w.id || wc.Status != w.status || (wc.Cause != nil) != (w.id == 3) {
				t.Errorf("%+v, want %+v", wc, w)
			}
		}
		synctest.Wait()
		nothing(t, x)
		if x.QP.State() != verbs.QPStateErr || y.QP.State() != verbs.QPStateErr {
			t.Errorf("states %v and %v, want QPS_ERR of both", x.QP.State(), y.QP.State())
		}
	})
}

// The largest queues and lists that can be asked for work to their end.
func TestLargestQueue(t *testing.T) {
	const most = 1 << 15
	x, y := pair(t, rdmatest.Options{Cap: verbs.QPCap{MaxSendWR: most, MaxRecvWR: most, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 8}})
	dst := y.MR(8)
	wrs := make([]verbs.SendWR, most)
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: uint64(i), Op: verbs.OpRDMAWrite, Flags: verbs.SendInline, InlineData: []byte{byte(i)}, Remote: dst.Remote(0)}
	}
	wrs[most-1].Flags |= verbs.SendSignaled
	x.Send(wrs...)
	if wc := x.Done(); wc.ID != most-1 {
		t.Errorf("completion %+v, want ID %v", wc, most-1)
	}
	x.Send(wrs...) // all places are free again
	x.Done()
	recvs := make([]verbs.RecvWR, most)
	y.Recv(recvs...)
	_, err := y.QP.PostRecv(recvs[:1])
	wantErr(t, "one more", err, verbs.ErrQueueFull, "32768 work requests")
}

// A SEND waits for a receive that is posted late, for as long as rnr_retry says.
func TestReceiverNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := pair(t, rdmatest.Options{Path: verbs.Path{MinRNRTimer: 31}})
		x.Send(send(1))
		<-time.After(time.Minute) // of the bubble
		nothing(t, x)
		y.Recv(recv(2))
		if wc := x.Done(); wc.ID != 1 {
			t.Errorf("completion %+v, want ID %v", wc, 1)
		}
		y.Done()

		x, y = pair(t, rdmatest.Options{Retry: verbs.Retry{Timeout: 14, RetryCount: 7, RNRRetryCount: 3, MaxRDAtomic: 1}, Path: verbs.Path{MinRNRTimer: 31}})
		start := time.Now()
		x.Send(send(3))
		wc := x.Next()
		if wc.Status != verbs.WCRNRRetryExceeded || !errorHas(wc.Err(), "the peer had no receive posted") {
			t.Errorf("completion with %v, want %v", wc.Err(), verbs.WCRNRRetryExceeded)
		}
		if took := time.Since(start); took < 3*491520*time.Microsecond || took > 4*491520*time.Microsecond {
			t.Errorf("3 retries of 491.52 ms took %v, want three to four times that", took)
		}
		nothing(t, y)
	})
}

// TestPostOne: a work request of its own arrives as one of a list does, and its errors speak of no list.
func TestPostOne(t *testing.T) {
	x, y := pair(t, rdmatest.Options{Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 2, MaxRecvSGE: 2}})
	src, dst := x.MR(16), y.MR(16)
	copy(src.Bytes(), "first, second.")
	check(t, y.QP.PostOneRecv(1, dst.SGE(4, 2), dst.SGE(10, 6)))
	wr := verbs.SendWR{ID: 2, Op: verbs.OpSend, Flags: verbs.SendSignaled}
	check(t, x.QP.PostOneSend(wr, src.SGE(0, 2), src.SGE(7, 6)))
	if wc := y.Done(); wc.ID != 1 || wc.ByteLen != 8 || string(dst.Bytes()) != "\x00\x00\x00\x00fi\x00\x00\x00\x00second" {
		t.Errorf("receive %d of %d bytes: %q, want 1, of 8 bytes, in two places", wc.ID, wc.ByteLen, dst.Bytes())
	}
	if wc := x.Done(); wc.ID != 2 {
		t.Errorf("send %d, want 2", wc.ID)
	}
	wr.Op, wr.SGList, wr.Remote = verbs.OpRDMAWrite, []verbs.SGE{src.SGE(0, 5)}, dst.Remote(0)
	check(t, x.QP.PostOneSend(wr))
	x.Done()
	if string(dst.Bytes()[:5]) != "first" {
		t.Errorf("the WRITE has put %q, want first", dst.Bytes()[:5])
	}

	srq := must(y.PD.CreateSRQ(verbs.SRQAttr{MaxWR: 1, MaxSGE: 1}))(t)
	check(t, srq.PostOneRecv(1, dst.SGE(0, 8)))
	name := fmt.Sprintf("qp %v: ", x.QP.QPN())
	post := func(f func(*verbs.SendWR), sges ...verbs.SGE) error {
		bad := verbs.SendWR{Op: verbs.OpSend}
		f(&bad)
		return x.QP.PostOneSend(bad, sges...)
	}
	three := []verbs.SGE{{}, {}, {}}
	for _, tt := range []struct {
		what string
		err  error
		kind error
		text string
	}{
		{"SGEs twice", post(func(wr *verbs.SendWR) { wr.SGList = three[:1] }, three[0]), verbs.ErrInvalid, "post send to " + name + "SGEs in SGList and as arguments"},
		{"operation", post(func(wr *verbs.SendWR) { wr.Op = 99 }), verbs.ErrUnsupported, "post send to " + name + "WR(99)"},
		{"three SGEs", post(func(*verbs.SendWR) {}, three...), verbs.ErrLimit, "post send to " + name + "3 SGEs: the QP was created for 2"},
		{"three SGEs to receive", x.QP.PostOneRecv(1, three...), verbs.ErrLimit, "post receive to " + name + "3 SGEs: the QP was created for 2"},
		{"SRQ's place", srq.PostOneRecv(2), verbs.ErrQueueFull, "post receive to srq 1: "},
	} {
		wantErr(t, tt.what, tt.err, tt.kind, tt.text)
	}
	check(t, x.QP.Close())
	wantErr(t, "send of a closed QP", x.QP.PostOneSend(wr), verbs.ErrClosed)
	wantErr(t, "bad send of a closed QP", post(func(wr *verbs.SendWR) { wr.Op = 99 }), verbs.ErrClosed)
	wantErr(t, "receive of a closed QP", x.QP.PostOneRecv(1), verbs.ErrClosed)
	wantErr(t, "bad receive of a closed QP", x.QP.PostOneRecv(1, three...), verbs.ErrClosed)
}

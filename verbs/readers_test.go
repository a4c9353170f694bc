package verbs_test

// What the readers of a well-known introduction to RDMA asked, year after year, answered by
// tests. Those about the data are here, those about queues in readers_queue_test.go.

import (
	"bytes"
	"encoding/binary"
	"math"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// "I have an array[10] of X, registered with one rkey. May I write to its 3rd element alone?"
func TestReaderOffsetWithOneRKey(t *testing.T) {
	x, y := pair(t)
	const elem = 24
	array := must(y.PD.RegMR(make([]byte, 10*elem), rdmatest.Access))(t)
	src := must(x.PD.RegMR(bytes.Repeat([]byte{7}, elem), 0))(t)
	x.Send(write(1, src.SGE(0, elem), array.Remote(0).Add(2*elem)))
	x.Done()
	want := make([]byte, 10*elem)
	copy(want[2*elem:], src.Bytes())
	if !bytes.Equal(array.Bytes(), want) {
		t.Errorf("the array is % x, want % x", array.Bytes(), want)
	}
}

// "There are 3 ways to post n writes: a list of work requests, one with n SGEs, n calls. Are they
// equivalent? Does the 2nd SGE start where the 1st one's copy ended?"
func TestReaderThreeWaysToPost(t *testing.T) {
	x, y := pair(t, rdmatest.Options{Cap: verbs.QPCap{MaxSendWR: 32, MaxRecvWR: 1, MaxSendSGE: 32}})
	const n, size = 32, 100
	src := x.MR(n * size)
	for i := range src.Bytes() {
		src.Bytes()[i] = byte(i * 7)
	}
	post := map[string]func(dst *verbs.MR){
		"list": func(dst *verbs.MR) {
			var wrs []verbs.SendWR
			for i := range n {
				wrs = append(wrs, write(uint64(i), src.SGE(i*size, size), dst.Remote(i*size)))
			}
			x.Send(wrs...)
			for i := range uint64(n) {
				if wc := x.Done(); wc.ID != i {
					t.Errorf("list: completion %d, want %d", wc.ID, i)
				}
			}
		},
		"SGEs": func(dst *verbs.MR) {
			wr := verbs.SendWR{ID: 9, Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: dst.Remote(0)}
			for i := range n {
				wr.SGList = append(wr.SGList, src.SGE(i*size, size))
			}
			x.Send(wr)
			if wc := x.Done(); wc.ID != 9 { // one work request, one completion
				t.Errorf("SGEs: completion %+v, want one with ID 9", wc)
			}
		},
		"calls": func(dst *verbs.MR) {
			for i := range n {
				x.Send(write(uint64(i), src.SGE(i*size, size), dst.Remote(i*size)))
			}
			for i := range uint64(n) {
				if wc := x.Done(); wc.ID != i {
					t.Errorf("calls: completion %d, want %d", wc.ID, i)
				}
			}
		},
	}
	for name, f := range post {
		dst := y.MR(n * size)
		f(dst)
		nothing(t, x)
		if !bytes.Equal(dst.Bytes(), src.Bytes()) {
			t.Errorf("%s: data differ from what was written, want the same", name)
		}
	}
}

// "Does IBV_SEND_FENCE make a work request complete before the next?" It makes it start after
// the READs and atomics before it: a SEND of what a READ brings needs it.
func TestReaderFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 100_000
		for flags, want := range map[verbs.SendFlags]byte{0: 1, verbs.SendFence: 2} {
			net := rdmatest.New(t, rdmatest.Config{Delay: time.Millisecond})
			x, y := rdmatest.Connect(t, net.Device(), net.Device())
			buf, theirs := x.MR(size), y.MR(2*size)
			fill(buf, 1)
			fill(theirs, 2)
			y.Recv(recv(3, theirs.SGE(size, size)))
			wr := send(2, buf.SGE(0, size))
			wr.Flags |= flags
			x.Send(read(1, buf.SGE(0, size), theirs.Remote(0)), wr)
			for _, id := range []uint64{1, 2} { // completions are in order in any case
				if wc := x.Done(); wc.ID != id {
					t.Errorf("completion %d, want %d", wc.ID, id)
				}
			}
			y.Done()
			if got := theirs.Bytes()[size:]; !bytes.Equal(got, bytes.Repeat([]byte{want}, size)) {
				t.Errorf("with the flags %v the SEND carried %d, want %d", flags, got[0], want)
			}
		}
	})
}

// "Must the size of a receive match that of the send? With sockets it need not."
func TestReaderReceiveLargerThanMessage(t *testing.T) {
	x, y := pair(t)
	src, dst := x.MR(100), y.MR(4096)
	fill(dst, 9)
	y.Recv(recv(1, dst.SGE(0, 4096)))
	x.Send(send(2, src.SGE(0, 100)))
	if wc := y.Done(); wc.ByteLen != 100 {
		t.Errorf("received %d bytes, want 100", wc.ByteLen)
	}
	if !guarded(dst, []verbs.SGE{dst.SGE(0, 100)}, 9) {
		t.Error("the rest of the buffer was touched")
	}
}

// "… and the converse?" It fails on both sides, and nothing is written past the buffer.
func TestReaderReceiveTooSmall(t *testing.T) {
	for _, sent := range []int{101, 20_000} {
		x, y := pair(t)
		src, dst := x.MR(sent), y.MR(200)
		fill(dst, 9)
		y.Recv(recv(1, dst.SGE(0, 100)))
		x.Send(send(2, src.SGE(0, sent)))
		wc := y.Next()
		if wc.ID != 1 || wc.Status != verbs.WCLocLenErr || !errorHas(wc.Err(), "the message is longer than the posted buffer") {
			t.Errorf("receiver: %+v, want ID 1 with %v", wc, verbs.WCLocLenErr)
		}
		wc = x.Next()
		if wc.ID != 2 || wc.Status != verbs.WCRemInvReqErr || !errorHas(wc.Err(), "too long for its receive buffer") {
			t.Errorf("sender: %+v, want ID 2 with %v", wc, verbs.WCRemInvReqErr)
		}
		if !guarded(dst, []verbs.SGE{dst.SGE(0, 100)}, 9) {
			t.Error("bytes past the buffer were touched")
		}
	}
}

// "The receiver does not know the size of the message in advance." It is told size and key by a
// small SEND, and fetches the rest by a READ; "two ibv_post_recv calls" are not needed.
func TestReaderTwoStageTransfer(t *testing.T) {
	x, y := pair(t)
	message := bytes.Repeat([]byte("of a size that nobody knew "), 1234)
	big := must(x.PD.RegMR(message, verbs.AccessRemoteRead))(t)

	notice := y.MR(20)
	y.Recv(recv(1, notice.SGE(0, 20)))
	var b []byte
	b = binary.BigEndian.AppendUint64(b, uint64(big.Len()))
	b = binary.BigEndian.AppendUint64(b, big.Addr())
	b = binary.BigEndian.AppendUint32(b, uint32(big.RKey()))
	x.Send(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendInline, InlineData: b})

	y.Done()
	n := int(binary.BigEndian.Uint64(notice.Bytes()))
	from := verbs.RemoteAddr{VA: binary.BigEndian.Uint64(notice.Bytes()[8:]), RKey: verbs.RKey(binary.BigEndian.Uint32(notice.Bytes()[16:]))}
	dst := y.MR(n)
	y.Send(read(2, dst.SGE(0, n), from))
	if wc := y.Done(); int(wc.ByteLen) != len(message) || !bytes.Equal(dst.Bytes(), message) {
		t.Errorf("fetched %d bytes, want the message of %d", wc.ByteLen, len(message))
	}
}

// "If I have 6 compute nodes, do I need 6 PDs and 6 regions for the same memory of the master?"
func TestReaderOnePDForSixPeers(t *testing.T) {
	net := rdmatest.New(t)
	master := net.Device()
	pd, cq := must(master.AllocPD())(t), must(master.CreateCQ(64))(t)
	mr := must(pd.AllocMR(6*8, rdmatest.Access))(t)
	for i := range 6 {
		node := net.Device()
		peer := newQP(t, node, verbs.QPCap{MaxSendWR: 1, MaxInlineData: 8})
		qp := must(pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1}}))(t)
		connect(t, qp, peer)
		x := &rdmatest.Endpoint{CQ: peer.SendCQ(), QP: peer}
		must(x.QP.PostSend([]verbs.SendWR{{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled | verbs.SendInline,
			InlineData: bytes.Repeat([]byte{byte(i + 1)}, 8), Remote: mr.Remote(8 * i)}}))(t)
		var wcs [1]verbs.WC
		must(x.CQ.Wait(t.Context(), wcs[:]))(t)
		check(t, wcs[0].Err())
	}
	for i, b := range mr.Bytes() {
		if int(b) != i/8+1 {
			t.Fatalf("byte %d is %d, want %d: % x", i, b, i/8+1, mr.Bytes())
		}
	}
}

// "650 MB/s instead of 1500: your memory wasn't page-aligned?" It need not be, to be right.
func TestReaderUnalignedBuffers(t *testing.T) {
	x, y := pair(t)
	const size = 9001
	for off := range 17 {
		a, b := make([]byte, size+32), make([]byte, size+32)
		src := must(x.PD.RegMR(a[off:][:size], 0))(t)
		dst := must(y.PD.RegMR(b[17-off:][:size], rdmatest.Access))(t)
		fill(src, byte(off+1))
		x.Send(write(1, src.SGE(0, size), dst.Remote(0)))
		x.Done()
		if !bytes.Equal(src.Bytes(), dst.Bytes()) || bytes.Count(b, []byte{0}) != 32 {
			t.Errorf("offset %d: data differ, or the bytes around were touched, want the same, and the others 0", off)
		}
		check(t, src.Close())
		check(t, dst.Close())
	}
}

// "Is it difficult to have a buffer of doubles instead of chars?"
func TestReaderDoubles(t *testing.T) {
	x, y := pair(t)
	values, got := []float64{math.Pi, -1, math.Inf(1), 0, math.MaxFloat64}, make([]float64, 5)
	src := must(x.PD.RegMR(verbs.BytesOf(values), 0))(t)
	dst := must(y.PD.RegMR(verbs.BytesOf(got), rdmatest.Access))(t)
	x.Send(write(1, src.SGE(0, 40), dst.Remote(0)))
	x.Done()
	if !slices.Equal(got, values) {
		t.Errorf("values %v, want %v", got, values)
	}
	// In memory that was allocated:
	there := y.MR(40)
	x.Send(write(3, src.SGE(0, 40), there.Remote(0)))
	x.Done()
	if got := verbs.View[float64](there.Bytes()); !slices.Equal(got, values) {
		t.Errorf("values %v, want %v", got, values)
	}
	// For peers of any byte order:
	values[1] = 42.5
	buf := x.MR(40)
	if _, err := binary.Encode(buf.Bytes(), binary.LittleEndian, values); err != nil {
		t.Fatal(err)
	}
	theirs := y.MR(40)
	x.Send(write(2, buf.SGE(0, 40), theirs.Remote(0)))
	x.Done()
	if _, err := binary.Decode(theirs.Bytes(), binary.LittleEndian, got); err != nil || !slices.Equal(got, values) {
		t.Errorf("values %v, %v; want %v", got, err, values)
	}
}

// "Do the buffers need to be pinned so that they won't be swapped out?" Registering does what
// is needed: here, the garbage collector may not move or free what a peer writes to.
func TestReaderPinning(t *testing.T) {
	x, y := pair(t)
	remote := must(y.PD.RegMR(make([]byte, 64), rdmatest.Access))(t).Remote(0) // no other reference is kept
	src := x.MR(64)
	fill(src, 5)
	runtime.GC()
	x.Send(write(1, src.SGE(0, 64), remote))
	x.Done()
	back := x.MR(64)
	runtime.GC()
	x.Send(read(2, back.SGE(0, 64), remote))
	x.Done()
	if !bytes.Equal(back.Bytes(), src.Bytes()) {
		t.Errorf("read back % x, want % x", back.Bytes(), src.Bytes())
	}
}

// "How to send files of 2 GB and more? There is a 2^31 limit. I don't have lots of memory." In
// pieces, through a buffer of any size; a message beyond the limit is an error.
func TestReaderLargeData(t *testing.T) {
	x, y := pair(t)
	_, err := x.QP.PostSend([]verbs.SendWR{{Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{{Length: 1 << 31}, {Length: 1}}}})
	wantErr(t, "a message of 2^31 + 1", err, verbs.ErrLimit, "a message of 2147483649 bytes: at most 2^31")

	const piece, pieces, buffers = 4096, 100, 4
	src, dst := x.MR(piece*buffers), y.MR(piece*buffers)
	var file []byte
	next := 0
	post := func() {
		b := next % buffers
		y.Recv(recv(uint64(b), dst.SGE(b*piece, piece)))
		for i := range piece {
			src.Bytes()[b*piece+i] = byte(next)
		}
		x.Send(send(uint64(b), src.SGE(b*piece, piece)))
		next++
	}
	for next < buffers {
		post()
	}
	for range pieces {
		x.Done()
		b := int(y.Done().ID)
		file = append(file, dst.Bytes()[b*piece:][:piece]...)
		if next < pieces {
			post()
		} else if len(file) == pieces*piece {
			break
		}
	}
	for i, c := range file {
		if c != byte(i/piece) {
			t.Fatalf("byte %d is of piece %d, want %d", i, c, i/piece)
		}
	}
	if len(file) != pieces*piece {
		t.Errorf("%d bytes, want %d", len(file), pieces*piece)
	}
}

// "RDMA_WRITE does not notify the receiver. How does it know that data came?" It watches the last
// word, or the writer adds an immediate.
func TestReaderWriteDoesNotNotify(t *testing.T) {
	x, y := pair(t)
	const size = 8192
	src, dst := x.MR(size), y.MR(size)
	binary.NativeEndian.PutUint64(src.Bytes()[size-8:], 1<<40)
	fill := src.Bytes()[:size-8]
	for i := range fill {
		fill[i] = 0xab
	}
	x.Send(write(1, src.SGE(0, size), dst.Remote(0)))
	spin(t, "the last word of the write", func() bool { return dst.Load64(size-8) != 0 })
	if dst.Load64(size-8) != 1<<40 || !bytes.Equal(dst.Bytes()[:size-8], fill) {
		t.Error("the last word came before the rest")
	}
	x.Done()
	nothing(t, y)

	y.Recv(recv(5)) // an immediate takes a receive, which needs no memory
	wr := write(2, src.SGE(0, size), dst.Remote(0))
	wr.Op, wr.Imm = verbs.OpRDMAWriteWithImm, 77
	x.Send(wr)
	if wc := y.Done(); wc.ID != 5 || wc.Imm != 77 || wc.ByteLen != size || wc.Flags&verbs.WCFlagWithImm == 0 {
		t.Errorf("completion %+v, want ID 5 with immediate 77 and %d bytes", wc, size)
	}
}

// "If the client only READs, one-way communication of rkey and address should be enough, right?
// And why a SEND from both sides first?" It is, and there is no need to.
func TestReaderOneWayKeyExchange(t *testing.T) {
	x, y := pair(t)
	server := must(y.PD.RegMR([]byte("served"), verbs.AccessRemoteRead))(t)
	client := must(x.PD.RegMR(make([]byte, 6), verbs.AccessLocalWrite))(t) // no peer gets its key
	x.Send(read(1, client.SGE(0, 6), server.Remote(0)))
	x.Done()
	if string(client.Bytes()) != "served" {
		t.Errorf("the client has %q, want \"served\"", client.Bytes())
	}
}

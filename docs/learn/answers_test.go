package learn_test

import (
	"errors"
	"math"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// The answers of questions.md as programs. x writes, sends and reads, and y is at the other end.

// connected returns two ends of a connection, and a region of each.
func connected(t *testing.T, o ...rdmatest.Options) (x, y *rdmatest.Endpoint, mine, theirs *verbs.MR) {
	net := rdmatest.New(t)
	x, y = rdmatest.Connect(t, net.Device(), net.Device(), o...)
	return x, y, x.MR(4096), y.MR(4096)
}

func wantBytes(t *testing.T, what string, mr *verbs.MR, at int, want string) {
	t.Helper()
	if got := string(mr.Bytes()[at : at+len(want)]); got != want {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func wantStatus(t *testing.T, wc verbs.WC, want verbs.WCStatus) {
	t.Helper()
	if wc.Status != want {
		t.Errorf("got status %v, want %v", wc.Status, want)
	}
}

// A list of work requests is a post of each. One work request of several SGEs is one message, whose pieces lie behind one
// another at the remote address.
func TestListOrSGEs(t *testing.T) {
	x, _, mine, theirs := connected(t)
	copy(mine.Bytes(), "onetwothree")
	one, two, three := mine.SGE(0, 3), mine.SGE(3, 3), mine.SGE(6, 5)
	write := func(to verbs.RemoteAddr, sges ...verbs.SGE) verbs.SendWR {
		return verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: sges, Remote: to}
	}
	to := theirs.Remote(0)
	x.Send(write(to, one), write(to.Add(3), two), write(to.Add(6), three)) // a list: three messages, three completions
	for range 3 {
		x.Done()
	}
	wantBytes(t, "a list", theirs, 0, "onetwothree")
	x.Send(write(to.Add(100), three, one, two)) // one message, one completion
	x.Done()
	wantBytes(t, "SGEs", theirs, 100, "threeonetwo")
}

// A fence makes a work request wait for READs and atomics before it. Here a WRITE passes on the bytes that a READ has brought.
func TestFence(t *testing.T) {
	x, _, mine, theirs := connected(t)
	copy(theirs.Bytes(), "read me")
	x.Send(
		verbs.SendWR{Op: verbs.OpRDMARead, SGList: []verbs.SGE{mine.SGE(0, 7)}, Remote: theirs.Remote(0)},
		verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendFence | verbs.SendSignaled, SGList: []verbs.SGE{mine.SGE(0, 7)}, Remote: theirs.Remote(100)},
	)
	x.Done()
	wantBytes(t, "the WRITE", theirs, 100, "read me")
}

// A work request leaves the send queue with its own completion, or with that of a later one. Unsignaled work requests alone
// fill the queue.
func TestQueueIsFull(t *testing.T) {
	const room = 4
	x, _, mine, theirs := connected(t, rdmatest.Options{Cap: verbs.QPCap{MaxSendWR: room, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
	wr := verbs.SendWR{Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{mine.SGE(0, 1)}, Remote: theirs.Remote(0)}
	list := make([]verbs.SendWR, room+1)
	for i := range list {
		list[i] = wr
	}
	list[room-1].Flags = verbs.SendSignaled
	n, err := x.QP.PostSend(list)
	if n != room || !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("posted %d, %v: want %d, and an error that says that the queue is full", n, err, room)
	}
	x.Done() // of the last, which makes room for all
	list[room].Flags = verbs.SendSignaled
	x.Send(list[room])
	x.Done()
}

// One rkey is good for each address inside the region.
func TestElementOfAnArray(t *testing.T) {
	x, _, mine, theirs := connected(t)
	const size = 8
	copy(mine.Bytes(), "element!")
	x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mine.SGE(0, size)}, Remote: theirs.Remote(0).Add(2 * size)})
	x.Done()
	wantBytes(t, "the third element", theirs, 2*size, "element!")
}

// A receive may be longer than the message, and its completion says how long that was. A shorter one fails at both ends.
func TestLengthOfReceive(t *testing.T) {
	x, y, mine, theirs := connected(t)
	y.Recv(verbs.RecvWR{SGList: []verbs.SGE{theirs.SGE(0, 100)}})
	x.Send(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mine.SGE(0, 60)}})
	if wc := y.Done(); wc.ByteLen != 60 {
		t.Errorf("got %d bytes, want 60", wc.ByteLen)
	}
	x.Done()

	y.Recv(verbs.RecvWR{SGList: []verbs.SGE{theirs.SGE(0, 50)}})
	x.Send(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mine.SGE(0, 60)}})
	wantStatus(t, y.Next(), verbs.WCLocLenErr)
	wantStatus(t, x.Next(), verbs.WCRemInvReqErr)
}

// Who does not know the length in advance is told where the message is, and READs it.
func TestLengthNotKnown(t *testing.T) {
	x, y, mine, theirs := connected(t)
	text := "a message of any length"
	at := 64
	copy(mine.Bytes()[at:], text)
	there, err := mine.Remote(at).AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	offer := append(there, byte(len(text)))
	copy(mine.Bytes(), offer)
	y.Recv(verbs.RecvWR{SGList: []verbs.SGE{theirs.SGE(0, 64)}})
	x.Send(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mine.SGE(0, len(offer))}})

	wc := y.Done()
	got := theirs.Bytes()[:wc.ByteLen]
	var from verbs.RemoteAddr
	if err := from.UnmarshalBinary(got[:len(got)-1]); err != nil {
		t.Fatal(err)
	}
	n := int(got[len(got)-1])
	y.Send(verbs.SendWR{Op: verbs.OpRDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{theirs.SGE(1000, n)}, Remote: from})
	y.Done()
	wantBytes(t, "the READ", theirs, 1000, text)
}

// Each receive takes one message: for the next message there must be another.
func TestReceiveForEach(t *testing.T) {
	x, y, mine, theirs := connected(t)
	for range 3 {
		y.Recv(verbs.RecvWR{SGList: []verbs.SGE{theirs.SGE(0, 8)}})
		x.Send(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mine.SGE(0, 8)}})
		x.Done()
		y.Done()
	}
}

// On an unreliable connection (UC) a completion says that the message is sent. Without a receive it is lost.
func TestUnreliable(t *testing.T) {
	x, y, mine, theirs := connected(t, rdmatest.Options{Type: verbs.QPTypeUC})
	send := func(text string) {
		copy(mine.Bytes(), text)
		x.Send(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mine.SGE(0, len(text))}})
		x.Done()
	}
	send("lost")
	// A WRITE needs no receive. It arrives behind the message that was sent before it.
	x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mine.SGE(0, 4)}, Remote: theirs.Remote(4088)})
	x.Done()
	for theirs.Load32(4088) == 0 {
		var wcs [1]verbs.WC
		if n, err := y.CQ.Poll(wcs[:]); n != 0 || err != nil {
			t.Fatalf("got %d completions, %v", n, err)
		}
	}
	y.Recv(verbs.RecvWR{SGList: []verbs.SGE{theirs.SGE(0, 64)}})
	send("here")
	y.Done()
	wantBytes(t, "the receive", theirs, 0, "here")
}

// One PD and one region serve any number of peers.
func TestOneRegionForAll(t *testing.T) {
	net := rdmatest.New(t)
	hub := net.Device()
	x, _ := rdmatest.Connect(t, net.Device(), hub)
	z, y := rdmatest.Connect(t, net.Device(), hub)
	shared := y.MR(64)
	second, err := y.PD.CreateQP(verbs.QPInitAttr{SendCQ: y.CQ, RecvCQ: y.CQ, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if second.PD() != y.QP.PD() || shared.PD() != y.PD {
		t.Error("two QPs of one PD have different PDs")
	}
	mine := z.MR(64)
	copy(mine.Bytes(), "from z")
	z.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mine.SGE(0, 6)}, Remote: shared.Remote(0)})
	z.Done()
	wantBytes(t, "the region", shared, 0, "from z")
	// Of another PD the key is worth nothing: x's QP at the hub has a PD of its own.
	other := x.MR(64)
	x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{other.SGE(0, 6)}, Remote: shared.Remote(0)})
	wantStatus(t, x.Next(), verbs.WCRemAccessErr)
}

// Completions stay in the queue until they are polled.
func TestLatePoller(t *testing.T) {
	x, y, mine, theirs := connected(t)
	for i := range 10 {
		y.Recv(verbs.RecvWR{ID: uint64(i), SGList: []verbs.SGE{theirs.SGE(8*i, 8)}})
		x.Send(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mine.SGE(0, 8)}})
		x.Done()
	}
	for i := range 10 { // nobody has looked at y's CQ yet
		if wc := y.Done(); wc.ID != uint64(i) {
			t.Errorf("got completion %d, want %d", wc.ID, i)
		}
	}
}

// A region is bytes: their meaning is a matter of the two programs.
func TestFloats(t *testing.T) {
	x, _, mine, theirs := connected(t)
	for i, v := range []float64{1.5, -2, math.Pi} {
		mine.Store64(8*i, math.Float64bits(v))
	}
	x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mine.SGE(0, 24)}, Remote: theirs.Remote(0)})
	x.Done()
	if got := math.Float64frombits(theirs.Load64(16)); got != math.Pi {
		t.Errorf("got %v, want pi", got)
	}
}

// A WRITE with immediate data takes a receive at the other end, whose completion says that the bytes are there.
func TestWriteThatTells(t *testing.T) {
	x, y, mine, theirs := connected(t)
	copy(mine.Bytes(), "there")
	y.Recv(verbs.RecvWR{}) // the data go elsewhere
	x.Send(verbs.SendWR{Op: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mine.SGE(0, 5)}, Remote: theirs.Remote(500), Imm: 42})
	wc := y.Done()
	if wc.Imm != 42 || wc.ByteLen != 5 {
		t.Errorf("got immediate %d and %d bytes, want 42 and 5", wc.Imm, wc.ByteLen)
	}
	wantBytes(t, "the WRITE", theirs, 500, "there")
	x.Done()
}

// Large transfers go in pieces, through buffers that are used again. The receiver says when a buffer is free.
func TestPieces(t *testing.T) {
	x, y, mine, theirs := connected(t)
	const piece, buffers, pieces = 1024, 2, 9
	sum := 0
	for i := range pieces {
		if i >= buffers { // wait until the receiver has freed a buffer
			x.Done()
		}
		slot := i % buffers * piece
		for k := range piece {
			mine.Bytes()[slot+k] = byte(i)
		}
		x.Recv(verbs.RecvWR{}) // for the answer
		y.Recv(verbs.RecvWR{})
		x.Send(verbs.SendWR{Op: verbs.OpRDMAWriteWithImm, SGList: []verbs.SGE{mine.SGE(slot, piece)}, Remote: theirs.Remote(slot), Imm: uint32(slot)})

		wc := y.Done() // the receiver's turn
		for _, b := range theirs.Bytes()[wc.Imm : wc.Imm+piece] {
			sum += int(b)
		}
		y.Send(verbs.SendWR{Op: verbs.OpSend}) // an empty message: a credit
	}
	if want := piece * pieces * (pieces - 1) / 2; sum != want {
		t.Errorf("got the sum %d, want %d", sum, want)
	}
}

// An atomic needs 8 bytes at a multiple of 8, and REMOTE_ATOMIC of the region and of the QP.
func TestAtomicNeeds(t *testing.T) {
	x, y, mine, _ := connected(t)
	plain, err := y.PD.AllocMR(8, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	add := verbs.SendWR{Op: verbs.OpAtomicFetchAdd, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mine.SGE(0, 8)}, Remote: plain.Remote(0), CompareAdd: 1}
	for what, wrong := range map[string]func(wr *verbs.SendWR){
		"4 bytes":        func(wr *verbs.SendWR) { wr.SGList = []verbs.SGE{mine.SGE(0, 4)} },
		"an odd address": func(wr *verbs.SendWR) { wr.Remote = wr.Remote.Add(4) },
	} {
		wr := add
		wrong(&wr)
		if _, err := x.QP.PostSend([]verbs.SendWR{wr}); err == nil {
			t.Errorf("an atomic of %s was posted", what)
		}
	}
	x.Send(add)
	wantStatus(t, x.Next(), verbs.WCRemAccessErr)
}

// The table of loss.md has all codes of the timeout, with 4.096 µs × 2^code.
func TestTimeoutTable(t *testing.T) {
	page, err := os.ReadFile("loss.md")
	if err != nil {
		t.Fatal(err)
	}
	units := map[string]float64{"µs": 1e-6, "ms": 1e-3, "s": 1}
	codes := map[int]bool{}
	for _, m := range regexp.MustCompile(`\| (\d+) \| ([\d.]+) (µs|ms|s) `).FindAllStringSubmatch(string(page), -1) {
		code, err1 := strconv.Atoi(m[1])
		got, err2 := strconv.ParseFloat(m[2], 64)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		codes[code] = true
		if want := 4.096e-6 * math.Exp2(float64(code)); math.Abs(got*units[m[3]]-want) > want/100 {
			t.Errorf("code %d: the page says %s %s, want %g s", code, m[2], m[3], want)
		}
	}
	if len(codes) != 31 {
		t.Errorf("the page has %d codes, want 31, and 0", len(codes))
	}
}

package ladder_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/ladder"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// Packets that were captured in one piece are drawn one by one, and paired with those at the other end.
func TestTrains(t *testing.T) {
	first, middle, last := write(wire.RCSendFirst, 5, 0), write(wire.RCSendMiddle, 6, 0), write(wire.RCSendLast, 7, 0)
	at, other := newTape(), newTape()
	at.addTrain(0, addrA, addrB, first, middle, last)
	other.addTrain(3*us, addrA, addrB, first)
	other.id = 2
	other.add(5*us, addrA, addrB, last) // the middle one is lost
	at.add(10*us, addrB, addrA, answer(6, nak))
	at.id = 10
	at.addTrain(20*us, addrA, addrB, middle, last)

	l := draw(t, ladder.Options{All: true}, at)
	var got []string
	for _, r := range l.Rows {
		got = append(got, fmt.Sprintf("%d: PSN %d, %d bytes, %d marks", r.Frame, r.PSN, r.Bytes, len(r.Marks)))
	}
	want := []string{"1: PSN 5, 256 bytes, 0 marks", "1: PSN 6, 256 bytes, 1 marks", "1: PSN 7, 256 bytes, 0 marks", "2: PSN 6, 0 bytes, 1 marks", "3: PSN 6, 256 bytes, 1 marks", "3: PSN 7, 256 bytes, 1 marks"}
	if !slices.Equal(got, want) {
		t.Errorf("rows:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if !strings.Contains(strings.Join(l.Notes, " "), "2 frames were captured as a train") {
		t.Errorf("notes: %q", l.Notes)
	}

	l = draw(t, ladder.Options{All: true}, at, other)
	for i, fate := range []ladder.Fate{ladder.Arrived, ladder.Lost, ladder.Arrived} {
		if r := l.Rows[i]; r.Fate != fate {
			t.Errorf("with the capture at the other end, PSN %d: fate %d, want %d", r.PSN, r.Fate, fate)
		}
	}

	c := ladder.NewCollector()
	if err := c.Read(bytes.NewReader(at.b)); err != nil {
		t.Fatal(err)
	}
	var page bytes.Buffer
	lost := ladder.Finding{Title: "lost", Severity: "warning", Frames: []int{1}, Count: 1}
	if err := c.HTML(&page, "", ladder.Options{}, ladder.Diagnosis{Findings: []ladder.Finding{lost}}); err != nil {
		t.Fatal(err)
	}
	if want := `"items":[1]`; !strings.Contains(page.String(), want) {
		t.Errorf("the page has no %s: the finding is not at the packet of its frame that was lost", want)
	}
}

// The operations of newer annexes have words of their own.
func TestNewOperations(t *testing.T) {
	c := newTape()
	flush := wire.Packet{BTH: wire.BTH{Opcode: wire.RCFlush, DestQP: qpB, PSN: 1}, FETH: wire.FETH{Placement: wire.FlushPersistent}, RETH: wire.RETH{VA: 0x1000, RKey: 0x99, Length: 64}}
	all := flush
	all.PSN, all.FETH = 2, wire.FETH{Placement: wire.FlushGlobal, Selectivity: wire.FlushMR}
	atomic := wire.Packet{BTH: wire.BTH{Opcode: wire.RCAtomicWrite, DestQP: qpB, PSN: 3}, RETH: wire.RETH{VA: 0x1008, RKey: 0x99, Length: 8}, Payload: make([]byte, 8)}
	add := wire.Packet{BTH: wire.BTH{Opcode: wire.XRC | wire.RCFetchAdd, DestQP: qpB, PSN: 4}, XRCETH: wire.XRCETH{SRQN: 7}, AtomicETH: wire.AtomicETH{VA: 0x1010, RKey: 0x99, SwapAdd: 5}}
	read := wire.Packet{BTH: wire.BTH{Opcode: wire.XRC | wire.RCRDMAReadRequest, DestQP: qpB, PSN: 5}, XRCETH: wire.XRCETH{SRQN: 7}, RETH: wire.RETH{VA: 0x2000, RKey: 0x99, Length: 1024}}
	after := add
	after.PSN = 9 // the READ takes four PSNs of 256 bytes
	want := []string{
		"FLUSH, QP 0x000022, PSN 1, 64 bytes at 0x1000, rkey 0x00000099, to where it outlasts a loss of power",
		"FLUSH, QP 0x000022, PSN 2, the whole region of rkey 0x00000099, to where all see it",
		"ATOMIC_WRITE, QP 0x000022, PSN 3, 8 bytes, to 0x1008, rkey 0x00000099",
		"XRC FETCH_ADD, QP 0x000022, PSN 4, to SRQ 0x000007, add 5, at 0x1010, rkey 0x00000099",
		"XRC RDMA_READ_REQUEST, QP 0x000022, PSN 5, to SRQ 0x000007, 1024 bytes in all, from 0x2000, rkey 0x00000099",
		"XRC FETCH_ADD, QP 0x000022, PSN 9, to SRQ 0x000007, add 5, at 0x1010, rkey 0x00000099",
	}
	for i, p := range []wire.Packet{flush, all, atomic, add, read, after} {
		c.add(time.Duration(i)*us, addrA, addrB, p)
	}
	for i, r := range draw(t, ladder.Options{All: true}, c).Rows {
		if r.Words() != want[i] || len(r.Marks) > 0 {
			t.Errorf("%s, marks %v; want %s, and no mark", r.Words(), r.Marks, want[i])
		}
	}
}

// A capture of InfiniBand names LIDs, and the datagrams by which a subnet manager works. It has a packet for each cable: the
// same bytes at another interface are an arrival.
func TestInfiniBand(t *testing.T) {
	var b bytes.Buffer
	net := rdmatest.New(t, rdmatest.Config{Seed: 1, InfiniBand: true})
	net.Capture(&b)
	x, y := rdmatest.Connect(t, net.Device(), net.Device())
	src, dst := x.MR(64), y.MR(64)
	x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 64)}, Remote: dst.Remote(0)})
	x.Done()
	c := ladder.NewCollector()
	if err := c.Read(bytes.NewReader(b.Bytes())); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	l := c.Ladder(ladder.Options{})
	if err := l.Text(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"  LID 1\n", "SMP Get NodeInfo, by a directed route", "SMP GetResp PortInfo"} {
		if !strings.Contains(strings.Join(strings.Fields(text.String()), " "), strings.Join(strings.Fields(want), " ")) {
			t.Errorf("the ladder has no %q:\n%s", want, &text)
		}
	}
	writes := 0
	for _, r := range l.Rows {
		if r.Opcode == wire.RCRDMAWriteOnly {
			writes++
			if r.Fate != ladder.Arrived || len(r.Marks) > 0 || r.Count != 1 {
				t.Errorf("the WRITE's fate is %d with marks %v, %d times; want that it arrived", r.Fate, r.Marks, r.Count)
			}
		}
	}
	if writes != 1 {
		t.Errorf("%d rows of WRITEs, want 1", writes)
	}
}

package rsocket

import (
	"context"
	"encoding/binary"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// An end that writes and never reads has a receive for whatever its peer may send meanwhile: all its data, and a
// message for each half of its ring that it has read, however short the ring. Over iWARP, which has no RNR, a message
// without a receive ends the connection.
func TestWriterHasReceives(t *testing.T) { synctest.Test(t, testWriterHasReceives) }

func testWriterHasReceives(t *testing.T) {
	const half = 64 // of the peer's ring
	p, c, err := rawDialSetup(t, rdmatest.New(t), func(ring *verbs.MR) []byte {
		return appendHello(nil, &parameters{credits: 1000, sgl: extent{ring.Remote(half), sglSize}, data: extent{ring.Remote(0), half}})
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), rdmatest.Patience)
	defer cancel()
	entry, err := p.AllocMR(sgeSize, verbs.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	var wcs [1]verbs.WC
	send := func(wr verbs.SendWR, sg ...verbs.SGE) {
		t.Helper()
		wr.Op, wr.Flags = verbs.OpRDMAWriteWithImm, verbs.SendSignaled
		if err := p.QP().PostOneSend(wr, sg...); err != nil {
			t.Fatal(err)
		}
		if _, err := p.SendCQ().Wait(ctx, wcs[:]); err != nil || wcs[0].Status != verbs.WCSuccess {
			t.Fatalf("the peer's message: %v, %v, want it taken", wcs[0].Status, err)
		}
	}
	for range DefaultDepth { // as many as the hello allows
		send(verbs.SendWR{Imm: word(kindData, 1)})
	}
	for i := range DefaultDepth - 1 {
		if n, err := c.Write(make([]byte, half)); n != half || err != nil {
			t.Fatalf("write %d: %d, %v", i, n, err)
		}
		if _, err := p.RecvCQ().Wait(ctx, wcs[:]); err != nil {
			t.Fatal(err)
		}
		if err := p.QP().PostOneRecv(0); err != nil {
			t.Fatal(err)
		}
		putSGE(entry.Bytes(), binary.LittleEndian, extent{p.ring.Remote(0), half})
		send(verbs.SendWR{Imm: word(kindSGL, 1000), Remote: p.theirs.sgl.remote.Add((i + 1) % sglSize * sgeSize)}, entry.SGE(0, sgeSize))
	}
	cs, err := p.QP().Counters()
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := cs.Get("rcvd_rnr_err"); n != 0 || !ok {
		t.Errorf("%d times a message found no receive, want never", n)
	}
}

package rnic

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/iwarp"
	"github.com/adverb-rdma/adverb/internal/mpa"
	"github.com/adverb-rdma/adverb/verbs"
)

// halfClosed is a connection in memory that notes when its end says that nothing follows.
type halfClosed struct {
	net.Conn
	shut chan struct{}
}

func (h halfClosed) CloseWrite() error {
	close(h.shut)
	return nil
}

// over reports whether nothing follows.
func (h halfClosed) over() bool {
	synctest.Wait()
	select {
	case <-h.shut:
		return true
	default:
		return false
	}
}

// bareInitiator connects a QP, as initiator, with a peer that the test is.
func bareInitiator(t *testing.T) (*end, halfClosed, net.Conn) {
	t.Helper()
	terms, _ := agree(t, deep, deep, nil)
	return bare(t, terms)
}

// bare connects a QP with a peer that the test is.
func bare(t *testing.T, terms mpa.Terms) (*end, halfClosed, net.Conn) {
	t.Helper()
	e := newEnd(t, newDevice(t))
	ours, theirs := net.Pipe()
	t.Cleanup(func() { theirs.Close() })
	h := halfClosed{ours, make(chan struct{})}
	e.attach(h, terms)
	return e, h, theirs
}

// nextFPDU reads an FPDU, and returns its header and its payload.
func nextFPDU(t *testing.T, c net.Conn) (iwarp.Header, []byte) {
	t.Helper()
	head := make([]byte, mpa.LengthSize)
	if _, err := io.ReadFull(c, head); err != nil {
		t.Fatal(err)
	}
	size := mpa.Length(head)
	body := make([]byte, size+mpa.TrailerSize(size))
	if _, err := io.ReadFull(c, body); err != nil {
		t.Fatal(err)
	}
	h, n, err := iwarp.DecodeHeader(body[:size])
	if err != nil {
		t.Fatal(err)
	}
	return h, body[n:size]
}

// wantQuiet checks that nothing comes for a while.
func wantQuiet(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %d bytes, %v; want nothing to come", n, err)
	}
}

// siw looks at bytes that came before it was ready only when more come. So a peer that stays silent gets an empty WRITE a
// few times, which changes nothing.
func TestWake(t *testing.T) {
	for _, answered := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			e, _, peer := bareInitiator(t)
			began := time.Now()
			e.send(verbs.SendWR{Op: verbs.OpSend, Flags: signaled})
			for _, op := range []iwarp.Opcode{iwarp.Write, iwarp.Send} { // the first one says that this end is ready
				if h, _ := nextFPDU(t, peer); h.Op != op {
					t.Fatalf("got %v, want %v", h.Op, op)
				}
			}
			after := wakeTime
			for i := range wakes {
				h, payload := nextFPDU(t, peer)
				if took := time.Since(began); h.Op != iwarp.Write || !h.Last || h.STag != 0 || len(payload) > 0 || took != after {
					t.Errorf("after %v: %v with %d bytes; want an empty WRITE after %v", took, &h, len(payload), after)
				}
				after += wakeTime << (i + 1)
				if answered {
					if _, err := peer.Write(fpdu(&iwarp.Header{Tagged: true, Last: true, Op: iwarp.Write}, nil)); err != nil {
						t.Fatal(err)
					}
					break
				}
			}
			wantQuiet(t, peer)
		})
	}
}

// siw's initiator says nothing before its program does, which may wait for this end's.
func TestSpeak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _, peer := bare(t, mpa.Terms{IRD: 1, ORD: 1})
		began := time.Now()
		e.send(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: signaled})
		h, _ := nextFPDU(t, peer)
		if took := time.Since(began); h.Op != iwarp.Send || took != speakTime {
			t.Errorf("after %v: got %v, want a SEND after %v", took, h.Op, speakTime)
		}
		e.done()
		e.send(verbs.SendWR{ID: 2, Op: verbs.OpSend, Flags: signaled})
		nextFPDU(t, peer)
		if took := time.Since(began); took != speakTime {
			t.Errorf("the next SEND comes after %v, want it at once", took)
		}
		e.done()
		wantQuiet(t, peer)
	})
}

// Messages that the peer has sent before the end of a connection arrive before the end, and the peer's program has
// their completions: the end waits for the answer to a READ of no bytes, which comes behind them.
func TestEndAfterAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, h, peer := bareInitiator(t)
		e.recv(verbs.RecvWR{ID: 5})
		e.prov.Shutdown(e.qp.QPN())
		nextFPDU(t, peer) // this end is ready
		head, body := nextFPDU(t, peer)
		read, err := iwarp.DecodeReadReq(body)
		if err != nil || head.Op != iwarp.ReadRequest || read.Size != 0 {
			t.Fatalf("got %v of %+v, %v; want a READ of no bytes", &head, read, err)
		}
		if h.over() {
			t.Error("the stream ends before the answer")
		}
		answer := iwarp.Header{Tagged: true, Last: true, Op: iwarp.ReadResponse, STag: read.SinkSTag, TO: read.SinkTO}
		for _, b := range [][]byte{fpdu(&iwarp.Header{Last: true, Op: iwarp.Send, MSN: 1}, nil), fpdu(&answer, nil)} {
			if _, err := peer.Write(b); err != nil {
				t.Fatal(err)
			}
		}
		if wc := e.done(); wc.ID != 5 {
			t.Errorf("got completion %+v, want receive 5", wc)
		}
		if !h.over() {
			t.Error("the stream goes on after the answer")
		}
		peer.Close()
		if err := e.ended(); err != nil {
			t.Errorf("the end: %v, want none", err)
		}
	})
}

// TestEndWithoutAnswer: an answer that does not come is not waited for.
func TestEndWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, h, peer := bareInitiator(t)
		began := time.Now()
		e.prov.Shutdown(e.qp.QPN())
		go io.Copy(io.Discard, peer)
		<-h.shut
		if took := time.Since(began); took != askTime {
			t.Errorf("the stream ended after %v, want %v", took, askTime)
		}
		if err := e.ended(); err != nil || time.Since(began) != lingerTime {
			t.Errorf("the end: %v after %v, want none after %v", err, time.Since(began), lingerTime)
		}
	})
}

// TestEndOfUnasked: a peer that answers no READs, or whose end's program takes the QP to the error state, has a moment to
// receive all that this end has sent.
func TestEndOfUnasked(t *testing.T) {
	for name, end := range map[string]func(*end){
		"no READs": func(e *end) { e.prov.Shutdown(e.qp.QPN()) },
		"error":    func(e *end) { e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState)) },
	} {
		t.Run(name, func(t *testing.T) { testEndOfUnasked(t, end) })
	}
}

func testEndOfUnasked(t *testing.T, end func(*end)) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnd(t, newDevice(t))
		ours, theirs := net.Pipe()
		defer theirs.Close()
		h := halfClosed{ours, make(chan struct{})}
		terms, _ := agree(t, deep, mpa.Offer{ORD: 8}, nil)
		e.attach(h, terms)
		nextFPDU(t, theirs)
		e.recv(verbs.RecvWR{ID: 5})
		if _, err := theirs.Write(fpdu(&iwarp.Header{Last: true, Op: iwarp.Send, MSN: 1}, nil)); err != nil {
			t.Fatal(err)
		}
		e.done()
		began := time.Now()
		end(e)
		e.prov.Shutdown(e.qp.QPN()) // again changes nothing
		<-h.shut
		if took := time.Since(began); took != pauseTime {
			t.Errorf("the stream ended after %v, want %v", took, pauseTime)
		}
	})
}

// Both ends may end a connection at the same time.
func TestBothEnd(t *testing.T) {
	x, y := pair(t)
	x.write(x.mr(8), y.mr(8))
	for _, e := range []*end{x, y} {
		e.prov.Shutdown(e.qp.QPN())
	}
	for _, e := range []*end{x, y} {
		if err := e.ended(); err != nil {
			t.Errorf("the end: %v, want none", err)
		}
	}
}

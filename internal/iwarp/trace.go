package iwarp

import (
	"errors"
	"fmt"

	"github.com/adverb-rdma/adverb/internal/mpa"
	"github.com/adverb-rdma/adverb/verbs"
)

// Tracer describes one direction of a stream, from its first byte on: the MPA frame, and then FPDUs.
type Tracer struct {
	started bool
	lost    bool
	buf     []byte
	skip    int // bytes of an FPDU that say nothing

	back   *Tracer // the other direction
	marked bool    // the receiver has asked for markers
	at     int     // bytes since the beginning of the latest marker
}

// Tracers returns the functions that describe the two directions of a stream. They are called one at a time.
func Tracers() (sent, received func([]byte) []string) {
	var a, b Tracer
	a.back, b.back = &b, &a
	return a.Lines, b.Lines
}

// unmark returns bytes behind the MPA frame without their markers.
func (t *Tracer) unmark(b []byte) []byte {
	if !t.marked {
		return b
	}
	var plain []byte
	for _, x := range b {
		if t.at >= markerSize {
			plain = append(plain, x)
		}
		t.at = (t.at + 1) % markerInterval
	}
	return plain
}

// Markers of MPA, as package mpa has them.
const (
	markerSize     = 4
	markerInterval = 512
)

// Lines takes bytes of the stream, and returns a line for each frame or FPDU whose headers are complete.
func (t *Tracer) Lines(b []byte) (lines []string) {
	if t.started {
		b = t.unmark(b)
	}
	for len(b) > 0 && !t.lost {
		if t.skip > 0 {
			n := min(t.skip, len(b))
			t.skip -= n
			b = b[n:]
			continue
		}
		before, frame := len(t.buf), !t.started
		t.buf = append(t.buf, b[:min(len(b), mpa.MaxFrame)]...)
		line, n := t.line()
		if n == 0 {
			b = b[len(t.buf)-before:]
			continue
		}
		t.buf = t.buf[:0]
		lines = append(lines, line)
		if frame && t.started {
			b = t.unmark(b[n-before:])
			continue
		}
		if n > before {
			t.skip = n - before // those of them that are in b are passed over above
		}
	}
	return lines
}

// line describes the first frame in t.buf, and returns how many bytes the frame has, there or to come.
func (t *Tracer) line() (string, int) {
	if !t.started {
		f, n, err := mpa.DecodeFrame(t.buf)
		switch {
		case errors.Is(err, mpa.ErrShort):
			return "", 0
		case err != nil:
			t.lost = true
			return "no MPA frame: " + err.Error(), len(t.buf)
		}
		t.started = true
		if t.back != nil {
			t.back.marked = f.Markers
		}
		return describeFrame(&f), n
	}
	if len(t.buf) < mpa.LengthSize+untaggedSize+readRequestSize {
		if len(t.buf) < mpa.LengthSize {
			return "", 0
		}
		if size := mpa.Length(t.buf); len(t.buf) < mpa.LengthSize+size {
			return "", 0
		}
	}
	size := mpa.Length(t.buf)
	whole := mpa.LengthSize + size + mpa.TrailerSize(size)
	if size == 0 {
		return "FPDU, empty", whole
	}
	ulpdu := t.buf[mpa.LengthSize:min(len(t.buf), mpa.LengthSize+size)]
	h, n, err := DecodeHeader(ulpdu)
	if err != nil {
		return "FPDU: " + err.Error(), whole
	}
	text := fmt.Sprintf("%v len=%d", &h, size-n)
	switch {
	case h.Op == ReadRequest && len(ulpdu) >= n+readRequestSize:
		r, _ := DecodeReadReq(ulpdu[n : n+readRequestSize])
		text = fmt.Sprintf("%v read=%d va=%#x rkey=%v to stag=%#08x to=%#x", &h, r.Size, r.SrcTO, verbs.RKey(r.SrcSTag), r.SinkSTag, r.SinkTO)
	case h.Op == Terminate:
		if m, err := DecodeTermMsg(ulpdu[n:]); err == nil {
			text = fmt.Sprintf("%v: %v", &h, m.Code)
		}
	}
	return text, whole
}

func describeFrame(f *mpa.Frame) string {
	kind := "MPA request"
	if f.Reply {
		kind = "MPA reply"
	}
	s := fmt.Sprintf("%s rev=%d", kind, f.Revision)
	for _, x := range []struct {
		on   bool
		text string
	}{
		{f.Reject, " reject"}, {f.Markers, " markers"}, {f.CRC, " crc"}, {f.Enhanced, fmt.Sprintf(" ird=%d ord=%d", f.IRD, f.ORD)},
		{f.PeerToPeer, " peer-to-peer"}, {f.RTR&mpa.RTRFPDU != 0, " rtr=fpdu"}, {f.RTR&mpa.RTRWrite != 0, " rtr=write"}, {f.RTR&mpa.RTRRead != 0, " rtr=read"},
	} {
		if x.on {
			s += x.text
		}
	}
	return s + fmt.Sprintf(" private=%d", len(f.PrivateData))
}

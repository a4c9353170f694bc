package iwarp

import (
	"bytes"
	"testing"

	"github.com/adverb-rdma/adverb/internal/mpa"
)

// FuzzDecodeHeader has decoded headers encoded again: all but the reserved bits stays.
func FuzzDecodeHeader(f *testing.F) {
	for _, h := range []Header{
		{Tagged: true, Last: true, Op: Write, STag: 1, TO: 2}, {Op: Send, MSN: 3, MO: 4},
		{Last: true, Op: Terminate, QN: queueTerminate, MSN: 1}, {Last: true, Op: AtomicResponse, QN: queueAtomic},
	} {
		f.Add(h.AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, n, err := DecodeHeader(b)
		if err != nil {
			return
		}
		again := h.AppendTo(nil)
		want := bytes.Clone(b[:n])
		want[0] &^= 0x3c // reserved by DDP
		want[1] &^= 0x30 // reserved by RDMAP
		if !bytes.Equal(again, want) {
			t.Errorf("%x is decoded as %v, which is encoded as %x, want the same", want, &h, again)
		}
	})
}

// FuzzDecodeRequests decodes bytes as each body that has a size of its own.
func FuzzDecodeRequests(f *testing.F) {
	f.Add((&ReadReq{1, 2, 3, 4, 5}).AppendTo(nil))
	f.Add((&AtomicReq{CompareSwap, 1, 2, 3, 4, 5, 6, 7}).AppendTo(nil))
	f.Add((&AtomicResp{1, 2}).AppendTo(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := DecodeReadReq(b); err == nil && !bytes.Equal(r.AppendTo(nil), b) {
			t.Errorf("READ request %x is decoded as %+v, want it encoded as the same bytes", b, r)
		}
		if r, err := DecodeAtomicReq(b); err == nil {
			want := bytes.Clone(b)
			want[0], want[1], want[2], want[3] = 0, 0, 0, want[3]&0xf // reserved
			if !bytes.Equal(r.AppendTo(nil), want) {
				t.Errorf("atomic request %x is decoded as %+v, want it encoded as the same bytes", b, r)
			}
		}
		if r, err := DecodeAtomicResp(b); err == nil && !bytes.Equal(r.AppendTo(nil), b) {
			t.Errorf("atomic response %x is decoded as %+v, want it encoded as the same bytes", b, r)
		}
	})
}

// FuzzTracer has any stream described, in one piece and byte by byte: the lines are the same.
func FuzzTracer(f *testing.F) {
	frame := (&mpa.Frame{Revision: 2, Enhanced: true, PrivateData: []byte("x")}).AppendTo(nil)
	h := Header{Last: true, Op: ReadRequest, QN: queueRequest, MSN: 1}
	body := (&ReadReq{Size: 4}).AppendTo(h.AppendTo(nil))
	fpdu := append(append(mpa.AppendLength(nil, len(body)), body...), make([]byte, mpa.TrailerSize(len(body)))...)
	f.Add(append(append(frame, fpdu...), fpdu...))
	f.Fuzz(func(t *testing.T, b []byte) {
		var whole, pieces Tracer
		want := whole.Lines(b)
		var got []string
		for i := range b {
			got = append(got, pieces.Lines(b[i:i+1])...)
		}
		if len(got) > 0 && whole.lost {
			return // the line of bytes that are no MPA shows all bytes that were there
		}
		if len(got) != len(want) {
			t.Fatalf("%d lines byte by byte, %d at once:\n%q\n%q\nwant the same", len(got), len(want), got, want)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Errorf("line %d is %q byte by byte, %q at once, want the same", i, got[i], want[i])
			}
		}
	})
}

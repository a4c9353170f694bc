package rdmaio

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/adverb-rdma/adverb/verbs"
)

// SpanSize is how many bytes a Span that is sent takes.
const SpanSize = 20

// Span names a piece of registered memory to a peer. Whoever has a Span may use the memory as the region
// and the QP allow; the key opens the whole region.
type Span struct {
	Addr verbs.RemoteAddr
	Len  int64
}

// SpanOf returns the span of a whole region.
func SpanOf(mr *verbs.MR) Span { return Span{mr.Remote(0), int64(mr.Len())} }

// AppendBinary appends the span's form on the wire: address, key and length, in network order. A Span is an
// encoding.BinaryAppender, and the error is nil.
func (s Span) AppendBinary(b []byte) ([]byte, error) {
	b, _ = s.Addr.AppendBinary(b) // which cannot fail
	return binary.BigEndian.AppendUint64(b, uint64(s.Len)), nil
}

// MarshalBinary is an encoding.BinaryMarshaler.
func (s Span) MarshalBinary() ([]byte, error) { return s.AppendBinary(nil) }

// UnmarshalBinary is an encoding.BinaryUnmarshaler. UnmarshalBinary takes SpanSize bytes.
func (s *Span) UnmarshalBinary(b []byte) error {
	if len(b) != SpanSize {
		return fmt.Errorf("rdmaio: span: %w", verbs.Errorf(verbs.ErrInvalid, "%d bytes instead of %d", len(b), SpanSize))
	}
	v := Span{Len: int64(binary.BigEndian.Uint64(b[verbs.RemoteAddrSize:]))}
	_ = v.Addr.UnmarshalBinary(b[:verbs.RemoteAddrSize]) // of the right length
	if v.Len < 0 || v.Addr.VA+uint64(v.Len) < v.Addr.VA {
		return fmt.Errorf("rdmaio: span: %w", verbs.Errorf(verbs.ErrInvalid, "%d bytes from %#x on are no memory", v.Len, v.Addr.VA))
	}
	*s = v
	return nil
}

// Region is memory of the peer as an io.ReaderAt and an io.WriterAt. Its methods may be called by several
// goroutines at a time. Each ReadAt is READs of the peer's memory and each WriteAt WRITEs, of 256 KiB at
// most, several of them under way at a time; the peer's program has no part in these requests.
type Region struct {
	r    *Requester
	span Span
	ctx  context.Context
}

// Region returns the memory that a span of the peer's names.
func (r *Requester) Region(s Span) *Region { return &Region{r, s, context.Background()} }

// WithContext returns the same region with methods that return when ctx ends.
func (g *Region) WithContext(ctx context.Context) *Region { return &Region{g.r, g.span, ctx} }

// Size returns the region's length in bytes.
func (g *Region) Size() int64 { return g.span.Len }

// ReadAt reads len(p) bytes from offset off on. At the region's end ReadAt reads less, and returns io.EOF.
// After another error the n bytes are right, and the others may have changed.
func (g *Region) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, fmt.Errorf("rdmaio: read: %w", verbs.Errorf(verbs.ErrInvalid, "a negative offset, %d", off))
	}
	if off >= g.span.Len {
		return 0, io.EOF
	}
	short := int64(len(p)) > g.span.Len-off
	if short {
		p = p[:g.span.Len-off]
	}
	n, err = g.r.move(g.ctx, verbs.OpRDMARead, p, g.at(off))
	if err == nil && short {
		err = io.EOF
	}
	return n, err
}

// WriteAt writes p from offset off on. If p does not fit the region, WriteAt returns an error and
// writes nothing. After another error the n bytes are there, and others may be.
func (g *Region) WriteAt(p []byte, off int64) (n int, err error) {
	if off < 0 || off > g.span.Len || int64(len(p)) > g.span.Len-off {
		return 0, fmt.Errorf("rdmaio: write: %w", verbs.Errorf(verbs.ErrInvalid, "%d bytes at %d, where the region has %d bytes", len(p), off, g.span.Len))
	}
	return g.r.move(g.ctx, verbs.OpRDMAWrite, p, g.at(off))
}

func (g *Region) at(off int64) verbs.RemoteAddr {
	return verbs.RemoteAddr{VA: g.span.Addr.VA + uint64(off), RKey: g.span.Addr.RKey}
}

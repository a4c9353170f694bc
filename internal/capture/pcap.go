package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The magic numbers of pcap files, as they stand in a file of the big-endian kind.
const (
	magicMicroseconds = 0xa1b2c3d4
	magicNanoseconds  = 0xa1b23c4d

	pcapHeader = 24
	pcapRecord = 16

	linkTypeMask = 0x0fffffff // the upper bits tell of frame check sequences
)

// pcap is the classic format.
type pcap struct {
	order binary.ByteOrder
	unit  int64 // nanoseconds of the fraction's unit
	link  LinkType
}

func newPcap(r *Reader, magic [4]byte) (*pcap, error) {
	p := &pcap{}
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		switch order.Uint32(magic[:]) {
		case magicMicroseconds:
			p.order, p.unit = order, 1000
		case magicNanoseconds:
			p.order, p.unit = order, 1
		}
	}
	if p.order == nil {
		return nil, fmt.Errorf("%w: it begins with % x", ErrFormat, magic)
	}
	var h [pcapHeader]byte
	if err := r.rest(h[:]); err != nil {
		return nil, err
	}
	p.link = LinkType(p.order.Uint32(h[20:]) & linkTypeMask)
	return p, nil
}

const nanosecondsPerSecond = 1e9

func (p *pcap) next(r *Reader) (Frame, error) {
	h, err := r.in.Peek(pcapRecord)
	if err != nil {
		if len(h) > 0 && errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = ErrCut
		}
		return Frame{}, err
	}
	f := Frame{
		Time:   int64(p.order.Uint32(h))*nanosecondsPerSecond + int64(p.order.Uint32(h[4:]))*p.unit,
		Link:   p.link,
		Length: int(p.order.Uint32(h[12:])),
	}
	n := p.order.Uint32(h[8:])
	if n > maxFrame {
		return Frame{}, fmt.Errorf("%w: a frame of %d bytes", ErrFormat, n)
	}
	r.in.Discard(pcapRecord) // which has been peeked at
	f.Data, err = r.body(int(n))
	f.Length = max(f.Length, len(f.Data))
	return f, err
}

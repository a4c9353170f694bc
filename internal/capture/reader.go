package capture

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"

	"github.com/adverb-rdma/adverb/internal/journal"
)

// LinkType says with which header the frames of an interface begin (LINKTYPE_*).
type LinkType uint32

// The link types that a [Decoder] knows.
const (
	LinkNull       LinkType = 0   // BSD loopback: the address family in the host's order
	LinkEthernet   LinkType = 1   // Ethernet
	LinkRawOld     LinkType = 12  // IP, as some systems number it
	LinkRawOpenBSD LinkType = 14  // the same
	LinkRaw        LinkType = 101 // IP
	LinkLoop       LinkType = 108 // OpenBSD's loopback: the address family in network order
	LinkSLL        LinkType = 113 // Linux's cooked capture
	LinkERF        LinkType = 197 // records of Endace; libpcap's captures of RDMA devices
	LinkIPv4       LinkType = 228 // IPv4
	LinkIPv6       LinkType = 229 // IPv6
	LinkInfiniBand LinkType = 247 // InfiniBand, from the LRH on
	LinkSLL2       LinkType = 276 // Linux's cooked capture, version 2
)

// Direction says which way a frame went at the host that captured it.
type Direction uint8

// The directions.
const (
	NoDirection Direction = iota // the file does not say
	Inbound
	Outbound
)

// Frame is a frame of a capture.
type Frame struct {
	Number    int   // counts from 1, as Wireshark does
	Time      int64 // nanoseconds since 1970, 0 if the file has none
	Interface int   // counts from 0; of a pcap file 0
	Direction Direction
	Link      LinkType
	Data      []byte // as far as captured; holds until the next frame is read
	Length    int    // on the wire; more than len(Data) if the frame was cut
}

// ErrCut is wrapped by the error of a file that ends in the middle of a frame: the frames before it have been read.
var ErrCut = errors.New("the file ends in the middle of a frame")

// ErrFormat is wrapped by the error of a file that is no capture, or is damaged.
var ErrFormat = errors.New("not a capture, or a damaged one")

// maxFrame bounds a frame and a block: more is taken for damage.
const maxFrame = 16 << 20

// Reader reads the frames of a file.
type Reader struct {
	// Journal, unless nil, is given the records that software devices of adverb write between the frames.
	Journal func(journal.Event)

	in     *bufio.Reader
	format format
	number int
	buf    []byte
	err    error // that ended the file
}

// format reads the frames of one format.
type format interface {
	// next reads a frame, but for its number. Data may lie in r.buf.
	next(r *Reader) (Frame, error)
}

const (
	bufferSize = 256 << 10
	magicSize  = 4
)

// NewReader reads the beginning of a file. It recognizes gzip, pcap and pcapng.
func NewReader(r io.Reader) (*Reader, error) {
	in := bufio.NewReaderSize(r, bufferSize)
	magic, err := in.Peek(magicSize)
	if err == nil && bytes.HasPrefix(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("read capture: %w: %v", ErrFormat, err) // not %w: an empty file is no end of frames
		}
		in = bufio.NewReaderSize(z, bufferSize)
		magic, err = in.Peek(magicSize)
		if err != nil {
			return nil, fmt.Errorf("read capture: %w: %v", ErrFormat, err)
		}
	} else if err != nil {
		return nil, fmt.Errorf("read capture: %w: %v", ErrFormat, err)
	}
	c := &Reader{in: in}
	if [4]byte(magic) == blockSection {
		c.format = &pcapng{}
		return c, nil
	}
	if c.format, err = newPcap(c, [4]byte(magic)); err != nil {
		return nil, fmt.Errorf("read capture: %w", err)
	}
	return c, nil
}

// Next returns the next frame. At the end of the file the error is io.EOF.
func (r *Reader) Next() (Frame, error) {
	if r.err != nil {
		return Frame{}, r.err
	}
	f, err := r.format.next(r)
	if err != nil {
		r.err = err
		if !errors.Is(err, io.EOF) {
			r.err = fmt.Errorf("read capture: behind frame %d: %w", r.number, err)
		}
		return Frame{}, r.err
	}
	r.number++
	f.Number = r.number
	return f, nil
}

// Lost returns how many frames were lost by the program that captured, as far as the file has said so yet.
func (r *Reader) Lost() int {
	if p, ok := r.format.(*pcapng); ok {
		return p.lost
	}
	return 0
}

// fill reads len(b) bytes. It returns io.EOF if there are none at all, and ErrCut if there are fewer.
func (r *Reader) fill(b []byte) error {
	switch _, err := io.ReadFull(r.in, b); {
	case err == nil:
		return nil
	case errors.Is(err, io.ErrUnexpectedEOF):
		return ErrCut
	default:
		return err
	}
}

// rest is fill for the bytes behind the beginning of a record, so that an end of the file cuts the record.
func (r *Reader) rest(b []byte) error {
	if err := r.fill(b); !errors.Is(err, io.EOF) {
		return err
	}
	return ErrCut
}

// body reads n bytes into r.buf, which grows as bytes come, and not by a length that the file promises.
func (r *Reader) body(n int) ([]byte, error) {
	const step = 64 << 10
	if n > maxFrame {
		return nil, fmt.Errorf("%w: a record of %d bytes", ErrFormat, n)
	}
	for have := 0; have < n; {
		to := min(n, max(have+step, cap(r.buf)))
		if to > cap(r.buf) {
			grown := make([]byte, to, max(to, 2*cap(r.buf)))
			copy(grown, r.buf[:have])
			r.buf = grown
		}
		r.buf = r.buf[:to]
		if err := r.rest(r.buf[have:to]); err != nil {
			return nil, err
		}
		have = to
	}
	if n == 0 {
		return nil, nil
	}
	return r.buf[:n], nil
}

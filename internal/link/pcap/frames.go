package pcap

import (
	"encoding/binary"
	"io"
	"time"
)

// Frames writes frames of any link into a pcapng file. It is for one goroutine at a time.
type Frames struct{ f *blocks }

// NewFrames begins a file.
func NewFrames(w io.Writer, application string) (*Frames, error) {
	f, err := newBlocks(w, application)
	if err != nil {
		return nil, err
	}
	return &Frames{f}, f.flush()
}

// AddInterface describes one more interface, of a link type (LINKTYPE_*), and returns the number by which frames name it.
func (f *Frames) AddInterface(name string, linkType uint16) (int, error) {
	return f.f.addInterface(name, linkType)
}

// Write writes a frame. It is in w when Write returns.
func (f *Frames) Write(iface int, at time.Time, frame []byte) error {
	if err := f.f.packet(iface, at, 0, func(b []byte) []byte { return append(b, frame...) }); err != nil {
		return err
	}
	return f.f.flush()
}

// LinkTypeERF is the link type of frames that WriteERF writes.
const LinkTypeERF = 197

// ERFInfiniBand is the type of ERF records that hold packets of InfiniBand, from the LRH on.
const ERFInfiniBand = 21

const erfHeader = 16 // bytes

// WriteERF writes a packet behind a header of Endace's extensible record format. It is in w when WriteERF returns.
func (f *Frames) WriteERF(iface int, at time.Time, kind uint8, packet []byte) error {
	b := make([]byte, erfHeader, erfHeader+len(packet))
	sec, ns := uint64(at.Unix()), uint64(at.Nanosecond())
	binary.LittleEndian.PutUint64(b, sec<<32|ns<<32/1e9)
	b[8] = kind
	binary.BigEndian.PutUint16(b[10:], uint16(erfHeader+len(packet)))
	binary.BigEndian.PutUint16(b[14:], uint16(len(packet)))
	return f.Write(iface, at, append(b, packet...))
}

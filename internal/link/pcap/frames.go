package pcap

import (
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

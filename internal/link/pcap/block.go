package pcap

import (
	"bufio"
	"encoding/binary"
	"io"
	"time"

	"github.com/adverb-rdma/adverb/internal/journal"
)

// A pcapng file is a row of blocks. This package writes four kinds: one section header, an interface description for
// each link, an enhanced packet block for each packet, and a block for local use for what a device did besides. The
// numbers are those of the pcapng specification.
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockPacket    = 6

	byteOrderMagic = 0x1a2b3c4d
	linkTypeEther  = 1   // of RoCEv1, which is no IP
	linkTypeRaw    = 101 // IPv4 or IPv6, without a header in front

	optionEnd         = 0
	optionApplication = 4 // of a section
	optionName        = 2 // of an interface
	optionResolution  = 9 // of an interface: of its timestamps
	optionFlags       = 2 // of a packet

	nanoseconds = 9 // as a timestamp's resolution: a negative power of ten
)

// direction is the part of a packet's flags for inbound or outbound.
type direction uint32

const (
	inbound  direction = 1
	outbound direction = 2
)

// blocks writes the blocks of a file. Its user locks it.
type blocks struct {
	w          *bufio.Writer
	b          []byte // the block under way
	interfaces int
}

// newBlocks begins a file. Nothing reaches w before flush, unless the buffer is full.
func newBlocks(w io.Writer, application string) (*blocks, error) {
	f := &blocks{w: bufio.NewWriter(w)}
	f.begin(blockSection)
	f.u32(byteOrderMagic)
	f.u16(1) // the format's version: 1.0
	f.u16(0)
	f.b = binary.LittleEndian.AppendUint64(f.b, 1<<64-1) // the section's length is not known
	f.option(optionApplication, []byte(application))
	return f, f.end()
}

// addInterface describes one more interface, and returns the number by which packets name it.
func (f *blocks) addInterface(name string, linkType uint16) (int, error) {
	f.begin(blockInterface)
	f.u16(linkType)
	f.u16(0) // reserved
	f.u32(0) // no packet is cut
	f.option(optionName, []byte(name))
	f.option(optionResolution, []byte{nanoseconds})
	f.interfaces++
	return f.interfaces - 1, f.end()
}

// journal writes what a device did.
func (f *blocks) journal(e *journal.Event) error {
	f.begin(journal.BlockType)
	f.b = e.AppendTo(f.b)
	f.pad()
	return f.end()
}

// packet writes a packet. appendTo appends the packet to its argument.
func (f *blocks) packet(iface int, at time.Time, d direction, appendTo func(b []byte) []byte) error {
	f.begin(blockPacket)
	f.u32(uint32(iface))
	ns := uint64(at.UnixNano())
	f.u32(uint32(ns >> 32))
	f.u32(uint32(ns))
	lengths := len(f.b)
	f.u32(0) // set below: how much of the packet is here…
	f.u32(0) // …and how long the packet was
	start := len(f.b)
	f.b = appendTo(f.b)
	n := uint32(len(f.b) - start)
	binary.LittleEndian.PutUint32(f.b[lengths:], n)
	binary.LittleEndian.PutUint32(f.b[lengths+4:], n)
	f.pad()
	f.option(optionFlags, binary.LittleEndian.AppendUint32(nil, uint32(d)))
	return f.end()
}

func (f *blocks) flush() error { return f.w.Flush() }

func (f *blocks) u16(v uint16) { f.b = binary.LittleEndian.AppendUint16(f.b, v) }
func (f *blocks) u32(v uint32) { f.b = binary.LittleEndian.AppendUint32(f.b, v) }

// pad fills up to a multiple of 4 bytes, at which options and blocks begin.
func (f *blocks) pad() {
	for len(f.b)%4 != 0 {
		f.b = append(f.b, 0)
	}
}

func (f *blocks) option(code uint16, value []byte) {
	f.u16(code)
	f.u16(uint16(len(value)))
	f.b = append(f.b, value...)
	f.pad()
}

// begin begins a block of a kind. The block's length is set by end.
func (f *blocks) begin(kind uint32) {
	f.b = f.b[:0]
	f.u32(kind)
	f.u32(0)
}

// end ends the options and the block, which has its length at both ends, and writes the block.
func (f *blocks) end() error {
	f.option(optionEnd, nil)
	n := uint32(len(f.b) + 4)
	binary.LittleEndian.PutUint32(f.b[4:], n)
	f.u32(n)
	_, err := f.w.Write(f.b)
	return err
}

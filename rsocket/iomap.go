package rsocket

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net"
	"os"

	"github.com/adverb-rdma/adverb/verbs"
)

// Mapping is memory of this end that the peer writes to by WriteAt, beside the stream.
type Mapping struct {
	c      *Conn
	mr     *verbs.MR
	index  int
	offset int64
}

// ErrNotMapped is the cause of an error of WriteAt where the peer has mapped no memory, and of Map if the
// peer has no room for another mapping.
var ErrNotMapped = errors.New("not mapped")

// Map allocates n bytes, less than 4 GiB, which the peer may then write to by WriteAt from offset on (riomap). The peer
// must have asked for room for it: see Config.Maps. The peer knows of the mapping before it reads bytes that this end
// writes after Map.
func (c *Conn) Map(n int, offset int64) (*Mapping, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	m, err := c.mapMemory(n, offset)
	return m, c.opError("map", err)
}

func (c *Conn) mapMemory(n int, offset int64) (*Mapping, error) {
	if offset < 0 {
		return nil, verbs.Errorf(verbs.ErrInvalid, "an offset of %d: it must not be negative", offset)
	}
	if int64(n) > math.MaxUint32 { // the peer would be told of the rest of a division
		return nil, verbs.Errorf(verbs.ErrLimit, "a mapping of %d bytes: the protocol's longest has %d", n, uint32(math.MaxUint32))
	}
	m := &Mapping{c: c, offset: offset, index: -1}
	c.mu.Lock()
	if err := c.writeErr(); err != nil { // memory of a connection that is closed has another error
		c.mu.Unlock()
		return nil, err
	}
	for i, other := range c.maps {
		if other == nil {
			m.index = i
			c.maps[i] = m
			break
		}
	}
	room := len(c.maps)
	c.mu.Unlock()
	if m.index < 0 {
		return nil, fmt.Errorf("%w: the peer takes %d mappings at a time: close one, or have the peer ask for more (Config.Maps, RDMA_IOMAPSIZE)", ErrNotMapped, room)
	}
	var err error
	if m.mr, err = c.cm.AllocMR(n, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err == nil {
		err = c.announce(m)
	}
	if err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// announce writes the mapping's entry into the peer's iomap. Like data it takes a credit.
func (c *Conn) announce(m *Mapping) error {
	c.posting.Lock()
	defer c.posting.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.await(&c.w, (*Conn).canAnnounce); err != nil {
		return err
	}
	putIomap(c.controlBuf(), c.order, uint64(m.offset), extent{m.mr.Remote(0), uint32(m.mr.Len())})
	c.sent++
	// The iomap stands behind the target SGL.
	to := c.peerSGL.remote.Add(int(c.peerSGL.length)*sgeSize + m.index*iomapEntrySize)
	c.postControl(idControl, word(kindIomap, uint32(m.index)), iomapEntrySize, to)
	return c.err
}

func (c *Conn) canAnnounce() (bool, error) {
	return c.controls > 0 && c.sent != c.limit, c.writeErr()
}

// Bytes returns the memory. The peer's writes appear in the memory at any time. All that the peer wrote
// there before it wrote bytes to the stream is there when these bytes have been read.
func (m *Mapping) Bytes() []byte { return m.mr.Bytes() }

// MR returns the memory as a region, whose methods read words that the peer changes.
func (m *Mapping) MR() *verbs.MR { return m.mr }

// Close takes the memory away (riounmap). The peer is not told: if it writes there still, the
// connection fails.
func (m *Mapping) Close() error {
	m.c.unmap(m)
	if m.mr == nil {
		return nil
	}
	return m.mr.Close()
}

// unmap frees the mapping's place among those that the peer takes.
func (c *Conn) unmap(m *Mapping) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.maps[m.index] == m {
		c.maps[m.index] = nil
	}
}

// WriteAt writes b into memory that the peer has mapped, at the offset that the peer has given it
// (riowrite). The peer's program is not told: something in the memory, or in the stream behind it, must
// say that it is there. WriteAt returns when b is in the send ring. It is an io.WriterAt.
//
// With no bytes WriteAt looks after the connection, and returns why nothing could be written, or nil. A program that
// watches memory of its own calls it meanwhile.
func (c *Conn) WriteAt(b []byte, offset int64) (n int, err error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if len(b) == 0 {
		return 0, c.opError("write", c.look())
	}
	for n < len(b) {
		to, err := c.findMapping(uint64(offset) + uint64(n))
		if err == nil {
			var m int
			m, err = c.place(b[n:n+to.most(len(b)-n)], to)
			n += m
		}
		if err != nil {
			return n, c.opError("write", err)
		}
	}
	return n, nil
}

// look takes the completions that have come, and returns why nothing can be written.
func (c *Conn) look() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.w.deadline.over.Load() {
		return os.ErrDeadlineExceeded
	}
	c.progress()
	return c.writeErr()
}

// place sends as much of b as there is room for to memory of the peer.
func (c *Conn) place(b []byte, to extent) (int, error) {
	c.mu.Lock()
	if c.w.deadline.over.Load() {
		c.mu.Unlock()
		return 0, os.ErrDeadlineExceeded
	}
	c.want = min(len(b), len(c.outRing)/4)
	if err := c.await(&c.w, (*Conn).canPlace); err != nil {
		c.mu.Unlock()
		return 0, err
	}
	room := c.ringPiece(len(b), maxMessage)
	c.mu.Unlock()
	n := copy(room, b)
	c.posting.Lock()
	defer c.posting.Unlock()
	c.mu.Lock()
	if err := c.writeErr(); err != nil {
		c.mu.Unlock()
		return 0, err
	}
	start := c.outOffset(c.wpos)
	wr := &c.sending.wrs[0]
	*wr = verbs.SendWR{Op: verbs.OpRDMAWrite, Remote: to.remote}
	c.advance(wr, 1, n)
	c.mu.Unlock()
	return n, c.postSend(start, n)
}

// canPlace reports whether the send ring and the send queue have room.
func (c *Conn) canPlace() (bool, error) {
	return c.free() >= c.want && c.places(1), c.writeErr()
}

// findMapping returns the peer's memory from an offset on.
func (c *Conn) findMapping(offset uint64) (extent, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead { // and the memory may be gone
		return extent{}, cmp.Or(c.writeErr(), error(net.ErrClosed))
	}
	c.progress()
	for i := range c.cfg.Maps {
		at := sglSize*sgeSize + i*iomapEntrySize
		first := loadWord(c.in, at)
		e := loadSGE(c.in, at+8)
		if e.length > 0 && offset >= first && offset-first < uint64(e.length) {
			skip := offset - first
			return extent{verbs.RemoteAddr{VA: e.remote.VA + skip, RKey: e.remote.RKey}, e.length - uint32(skip)}, nil
		}
	}
	if err := c.writeErr(); err != nil {
		return extent{}, err
	}
	return extent{}, fmt.Errorf("%w: the peer has no memory at offset %d, in %d mappings that this end takes", ErrNotMapped, offset, c.cfg.Maps)
}

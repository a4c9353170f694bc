package capture

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/adverb-rdma/adverb/internal/journal"
)

// blockSection is the type of the block that begins a section, the same in both byte orders.
var blockSection = [4]byte{0x0a, 0x0d, 0x0d, 0x0a}

// Types of blocks, and numbers of options.
const (
	blockInterface   = 1
	blockOldPacket   = 2
	blockSimple      = 3
	blockStatistics  = 5
	blockPacket      = 6
	byteOrderMagic   = 0x1a2b3c4d
	optionEnd        = 0
	optionFlags      = 2 // of a packet
	optionResolution = 9
	optionOffset     = 14
	optionIfDrop     = 5 // of statistics
	optionOSDrop     = 7

	blockHead = 8 // type and length
	blockTail = 4 // the length again

	interfaceFixed = 8
	packetFixed    = 20
	simpleFixed    = 4
	countsFixed    = 12
	sectionFixed   = 16

	directionMask = 3 // of a packet's flags

	maxInterfaces = 1 << 16
)

// pcapng is the format of blocks.
type pcapng struct {
	order      binary.ByteOrder
	first      int // of all interfaces, the first of this section
	interfaces []netInterface
	lost       int // by the capturing program, in the sections before and by the latest statistics of each interface
}

type netInterface struct {
	link    LinkType
	snaplen uint32
	lost    int
	res     resolution
	offset  int64 // seconds to add
}

// resolution is the unit of timestamps: 10 or 2 to the power of minus n.
type resolution struct {
	binary bool
	n      uint8
}

var microseconds = resolution{n: 6}

// nanos converts a timestamp. A resolution that no clock has makes 0.
func (u resolution) nanos(ticks uint64) int64 {
	const maxDecimal = 19 // 10^19 is the last power of ten in 64 bits
	if u.binary {
		if u.n >= 64 {
			return 0
		}
		seconds, part := ticks>>u.n, ticks&(1<<u.n-1)
		hi, lo := bits.Mul64(part, nanosecondsPerSecond)
		fraction := lo
		if u.n > 0 {
			fraction = hi<<(64-u.n) | lo>>u.n
		}
		return int64(seconds*nanosecondsPerSecond + fraction)
	}
	power := uint64(1)
	for range min(max(int(u.n), 9)-min(int(u.n), 9), maxDecimal) {
		power *= 10
	}
	if u.n <= 9 {
		return int64(ticks * power)
	}
	return int64(ticks / power)
}

// next reads blocks up to one with a frame.
func (p *pcapng) next(r *Reader) (Frame, error) {
	for {
		var head [blockHead]byte
		if err := r.fill(head[:]); err != nil {
			return Frame{}, err
		}
		if [4]byte(head[:]) == blockSection {
			if err := p.section(r, head); err != nil {
				return Frame{}, err
			}
			continue
		}
		if p.order == nil {
			return Frame{}, fmt.Errorf("%w: a block before the first section", ErrFormat)
		}
		body, err := p.body(r, p.order.Uint32(head[4:]), blockHead)
		if err != nil {
			return Frame{}, err
		}
		kind := p.order.Uint32(head[:])
		if kind == journal.BlockType && r.Journal != nil {
			if e, err := journal.Decode(body); err == nil { // else of another program, which uses the number too
				r.Journal(e)
			}
			continue
		}
		f, ok, err := p.block(kind, body)
		if ok || err != nil {
			return f, err
		}
	}
}

// body reads the rest of a block of which read bytes have been read, and returns it without its tail.
func (p *pcapng) body(r *Reader, length uint32, read int) ([]byte, error) {
	if length < uint32(read+blockTail) || length%4 != 0 || length > maxFrame {
		return nil, fmt.Errorf("%w: a block of %d bytes", ErrFormat, length)
	}
	b, err := r.body(int(length) - read)
	if err != nil {
		return nil, err
	}
	if tail := p.order.Uint32(b[len(b)-blockTail:]); tail != length {
		return nil, fmt.Errorf("%w: a block of %d bytes ends as one of %d", ErrFormat, length, tail)
	}
	return b[:len(b)-blockTail], nil
}

// section begins a section, whose byte order may be another one.
func (p *pcapng) section(r *Reader, head [blockHead]byte) error {
	var magic [4]byte
	if err := r.rest(magic[:]); err != nil {
		return err
	}
	switch {
	case binary.LittleEndian.Uint32(magic[:]) == byteOrderMagic:
		p.order = binary.LittleEndian
	case binary.BigEndian.Uint32(magic[:]) == byteOrderMagic:
		p.order = binary.BigEndian
	default:
		return fmt.Errorf("%w: a section of byte order % x", ErrFormat, magic)
	}
	p.first += len(p.interfaces)
	p.interfaces = p.interfaces[:0]
	body, err := p.body(r, p.order.Uint32(head[4:]), blockHead+len(magic))
	if err != nil {
		return err
	}
	if len(body) < sectionFixed-len(magic) {
		return fmt.Errorf("%w: a section of %d bytes", ErrFormat, len(body))
	}
	return nil
}

// block takes a block. ok says that it has a frame.
func (p *pcapng) block(kind uint32, b []byte) (f Frame, ok bool, err error) {
	switch kind {
	case blockInterface:
		return f, false, p.addInterface(b)
	case blockPacket, blockOldPacket:
		if len(b) < packetFixed {
			return f, false, fmt.Errorf("%w: a packet block of %d bytes", ErrFormat, len(b))
		}
		n := p.order.Uint32(b)
		if kind == blockOldPacket {
			n = uint32(p.order.Uint16(b))
		}
		ticks := uint64(p.order.Uint32(b[4:]))<<32 | uint64(p.order.Uint32(b[8:]))
		f, err = p.frame(n, p.order.Uint32(b[12:]), p.order.Uint32(b[16:]), b[packetFixed:])
		if err == nil {
			i := p.interfaces[n]
			f.Time = i.res.nanos(ticks) + i.offset*nanosecondsPerSecond
			f.Direction = p.direction(b[packetFixed:], len(f.Data))
		}
		return f, err == nil, err
	case blockSimple:
		if len(b) < simpleFixed || len(p.interfaces) == 0 {
			return f, false, fmt.Errorf("%w: a packet of no interface", ErrFormat)
		}
		length := p.order.Uint32(b)
		captured := min(length, uint32(len(b)-simpleFixed))
		if s := p.interfaces[0].snaplen; s > 0 {
			captured = min(captured, s)
		}
		f, err = p.frame(0, captured, length, b[simpleFixed:])
		return f, err == nil, err
	case blockStatistics:
		p.statistics(b)
	}
	return f, false, nil // of statistics, names, secrets and others
}

// options hands the options of a block to take, up to one that it does not want to go on behind.
func (p *pcapng) options(b []byte, take func(option uint16, value []byte) (more bool)) {
	for len(b) >= 4 {
		option, n := p.order.Uint16(b), int(p.order.Uint16(b[2:]))
		if b = b[4:]; option == optionEnd || n > len(b) || !take(option, b[:n]) {
			return
		}
		b = b[min(len(b), (n+3)&^3):]
	}
}

// direction reads the flags among the options behind n bytes of data.
func (p *pcapng) direction(b []byte, n int) (d Direction) {
	p.options(b[min(len(b), (n+3)&^3):], func(option uint16, value []byte) bool {
		if option != optionFlags || len(value) < 4 {
			return true
		}
		switch p.order.Uint32(value) & directionMask {
		case 1:
			d = Inbound
		case 2:
			d = Outbound
		}
		return false
	})
	return d
}

// statistics reads how many frames of an interface were lost so far: at the interface, and behind it.
func (p *pcapng) statistics(b []byte) {
	const most = 1 << 40 // more is damage
	if len(b) < countsFixed || int64(p.order.Uint32(b)) >= int64(len(p.interfaces)) {
		return
	}
	sum := 0
	p.options(b[countsFixed:], func(option uint16, value []byte) bool {
		if (option == optionIfDrop || option == optionOSDrop) && len(value) >= 8 {
			sum += int(min(p.order.Uint64(value), most))
		}
		return true
	})
	i := &p.interfaces[p.order.Uint32(b)]
	p.lost += sum - i.lost
	i.lost = sum
}

func (p *pcapng) frame(n, captured, length uint32, data []byte) (Frame, error) {
	if int64(n) >= int64(len(p.interfaces)) {
		return Frame{}, fmt.Errorf("%w: a packet of interface %d, of which there are %d", ErrFormat, n, len(p.interfaces))
	}
	if int64(captured) > int64(len(data)) {
		return Frame{}, fmt.Errorf("%w: a packet of %d bytes in a block with room for %d", ErrFormat, captured, len(data))
	}
	return Frame{Interface: p.first + int(n), Link: p.interfaces[n].link, Data: data[:captured], Length: max(int(length), int(captured))}, nil
}

func (p *pcapng) addInterface(b []byte) error {
	if len(b) < interfaceFixed {
		return fmt.Errorf("%w: an interface block of %d bytes", ErrFormat, len(b))
	}
	if len(p.interfaces) == maxInterfaces {
		return fmt.Errorf("%w: more than %d interfaces", ErrFormat, maxInterfaces)
	}
	i := netInterface{link: LinkType(p.order.Uint16(b)), snaplen: p.order.Uint32(b[4:]), res: microseconds}
	p.options(b[interfaceFixed:], func(option uint16, value []byte) bool {
		switch {
		case option == optionResolution && len(value) >= 1:
			i.res = resolution{binary: value[0]&0x80 != 0, n: value[0] & 0x7f}
		case option == optionOffset && len(value) >= 8:
			i.offset = int64(p.order.Uint64(value))
		}
		return true
	})
	p.interfaces = append(p.interfaces, i)
	return nil
}

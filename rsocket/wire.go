package rsocket

import (
	"encoding/binary"
	"fmt"

	"github.com/adverb-rdma/adverb/verbs"
)

// The protocol on the wire, as librdmacm's rsocket.c has it and its docs/rsocket describes it.
//
// Each end has a ring that the peer writes into. It grants the ring once, and then by halves. Where the next half is stands
// in a list of two entries, the target SGL, which is in the memory of the end that sends: the receiving end writes the
// entries there. Every write of data, and every write of an entry, has immediate data: a word whose upper three bits are
// the kind of message, and the others a number. A word without a write is a WRITE of no bytes with immediate data.
//
// Over iWARP the word is a SEND of 4 bytes behind the WRITE, since not every device there has immediate data. The WRITE
// has none, and a word without a write is a SEND alone. The 4 bytes are in the byte order that the hello of the end in C
// gives; we want little-endian. A message takes two places of the send queue.
//
// iWARP has no NAK for a SEND that finds no receive: the connection ends. An end in C has as many receives as it gives
// credits, and the words that are not of data take some. So an end here keeps to half of the credits that it gets. It
// has spareReceives more than it gives credits, and gives new ones after a quarter of them, where half serves RoCE.
const (
	kindShift  = 29
	numberMask = 1<<kindShift - 1

	kindData    = 0 // so many bytes of data stand behind those before
	kindSGL     = 4 // the peer may send messages up to this number, and there may be a new entry
	kindIomap   = 6 // the entry of the iomap with this index is new
	kindControl = 7 // one of the numbers below

	controlDisconnect = 0 // the peer neither sends nor receives any more
	controlKeepAlive  = 1 // asks nothing; librdmacm sends it without immediate data, so that nobody sees it
	controlShutdown   = 2 // the peer sends no more
)

func word(kind, number uint32) uint32 { return kind<<kindShift | number }

const (
	version = 1 // of the protocol

	helloSize      = 40 // the private data of the REQ and of the REP
	wordSize       = 4
	maxParts       = 2 // work requests of a message
	sgeSize        = 16
	sglSize        = 2       // entries of the target SGL
	maxSGL         = 1 << 10 // of a peer's; librdmacm has 2 as well
	iomapEntrySize = 24

	// The flags of a hello. flagBigEndian says in which byte order the sender wants the entries that the
	// peer writes into its memory. We want little-endian on every host.
	flagBigEndian = 1 << 0
	flagIomap     = 1 << 1
)

// extent is memory of the peer that this end may write to (struct rs_sge).
type extent struct {
	remote verbs.RemoteAddr
	length uint32
}

// most returns n, or the extent's length if that is less.
func (e *extent) most(n int) int { return int(min(uint64(n), uint64(e.length))) }

// parameters are those that each end tells the other when it connects (struct rs_conn_data).
type parameters struct {
	bigEndian bool
	credits   uint16 // messages that the peer may send before it hears more
	maps      int    // entries of the iomap, which stands behind the SGL; 0 without flagIomap
	sgl       extent // of the target SGL; its length counts entries
	data      extent // the ring that the peer may write first; librdmacm grants half of it
}

// appendHello appends the message. of a parameter set. Its numbers are big-endian.
func appendHello(b []byte, h *parameters) []byte {
	flags := byte(flagIomap)
	if h.bigEndian {
		flags |= flagBigEndian
	}
	b = append(b, version, flags)
	b = binary.BigEndian.AppendUint16(b, h.credits)
	b = append(b, 0, 0, 0, toScale(h.maps))
	for _, e := range []extent{h.sgl, h.data} {
		b, _ = e.remote.AppendBinary(b) // which cannot fail
		b = binary.BigEndian.AppendUint32(b, e.length)
	}
	return b
}

// secured is the private data of a REQ with packet security, which leaves no room for a hello. The hello is then the
// beginning of the stream: the caller knows from the REP where to write.
const secured = "rsec"

// parseHello reads private data, which may be longer than the message: its length is not sent.
func parseHello(b []byte) (h parameters, err error) {
	if len(b) < helloSize {
		return h, fmt.Errorf("%w: private data of %d bytes, want %d", errProtocol, len(b), helloSize)
	}
	if b[0] != version {
		return h, fmt.Errorf("%w: version %d of the rsocket protocol, want %d: is the program at the other end one that speaks it?", errProtocol, b[0], version)
	}
	h.bigEndian = b[1]&flagBigEndian != 0
	h.credits = binary.BigEndian.Uint16(b[2:])
	if b[1]&flagIomap != 0 {
		h.maps = fromScale(b[7])
	}
	for i, e := range []*extent{&h.sgl, &h.data} {
		at := b[8+i*sgeSize:]
		_ = e.remote.UnmarshalBinary(at[:verbs.RemoteAddrSize]) // of the right length
		e.length = binary.BigEndian.Uint32(at[verbs.RemoteAddrSize:])
	}
	if h.sgl.length < 2 || h.sgl.length > maxSGL {
		return h, fmt.Errorf("%w: a target SGL of %d entries, want 2 to %d", errProtocol, h.sgl.length, maxSGL)
	}
	return h, nil
}

// toScale and fromScale bring the size of an iomap into a byte: sizes up to 128 are as they are, larger
// ones are multiples of 256.
func toScale(n int) byte {
	if n <= 128 {
		return byte(n)
	}
	return byte(128 | n>>8)
}

func fromScale(b byte) int {
	if b <= 128 {
		return int(b)
	}
	return int(b&127) << 8
}

// order returns the byte order of the entries in the memory of an end.
func order(bigEndian bool) binary.ByteOrder {
	if bigEndian {
		return binary.BigEndian
	}
	return binary.LittleEndian
}

// putSGE writes an entry of a target SGL.
func putSGE(b []byte, o binary.ByteOrder, e extent) {
	o.PutUint64(b, e.remote.VA)
	o.PutUint32(b[8:], uint32(e.remote.RKey))
	o.PutUint32(b[12:], e.length)
}

// putIomap writes an entry of an iomap: the offset by which the peer names the memory, and the memory.
func putIomap(b []byte, o binary.ByteOrder, offset uint64, e extent) {
	o.PutUint64(b, offset)
	putSGE(b[8:], o, e)
}

// loadSGE reads an entry that the peer has written at off into our memory. Its last word is the last to
// change on devices with verbs.GuaranteeLastWordLast, and an entry of length 0 is not there yet.
func loadSGE(mr *verbs.MR, off int) (e extent) {
	keyAndLength := loadWord(mr, off+8)
	e.length = uint32(keyAndLength >> 32)
	e.remote.RKey = verbs.RKey(uint32(keyAndLength))
	if e.length > 0 {
		e.remote.VA = loadWord(mr, off)
	}
	return e
}

// loadWord reads 8 bytes that are little-endian.
func loadWord(mr *verbs.MR, off int) uint64 {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], mr.Load64(off))
	return binary.LittleEndian.Uint64(b[:])
}

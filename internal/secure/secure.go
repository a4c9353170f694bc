// Package secure authenticates and encrypts the packets of a connection, and agrees on the keys.
//
// A secured packet holds another one, as [wire.Secured] shows. It is longer by Overhead:
//
//	offset  bytes
//	     0     12  a BTH: opcode Secured, and the P_Key, QPN, AckReq and PSN of the packet inside
//	    12      8  the packet's number
//	    20      4  encrypted: the first word of the packet's own BTH: opcode, flags, pad count
//	    24         encrypted: all that follows its BTH, up to the pad
//	            16  the tag
//	             4  the ICRC, over all that, as in any packet
//
// The cipher is AES-256-GCM. The tag covers the BTH in front too, but for the byte that routers may change and the
// ICRC leaves out. The nonce is the packet's number, which counts up with each packet that leaves, repeated ones
// included, xored with a secret of the direction: so no nonce is used twice, whatever the PSN. Each direction of each
// connection has keys of its own, and new ones after 2^28 packets.
package secure

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"

	"github.com/adverb-rdma/adverb/internal/wire"
)

const (
	// Lead is how many bytes a secured packet has in front of where the packet itself was written.
	Lead = wire.BTHSize
	// Overhead is by how much a secured packet is longer than the packet inside.
	Overhead = wire.SETHSize + innerSize + tagSize

	secretSize = 32 // the keys of a direction are made of so many bytes
	keySize    = 32
	nonceSize  = 12
	tagSize    = 16
	innerSize  = 4 // of the BTH that is encrypted

	sealedAt = wire.BTHSize + wire.SETHSize // where the encrypted part begins
	minSize  = sealedAt + innerSize + tagSize + wire.ICRCSize

	// maxPlain is the longest packet that is opened. The longest that a QP sends is shorter.
	maxPlain = wire.MaxHeaderLen + wire.ImmDtSize + 4096 + wire.ICRCSize

	// Space is the room that Open needs for its result.
	Space = maxPlain + tagSize

	// generationBits is after how many packets, as a power of two, a direction takes new keys. 2^28 packets of 4 KiB
	// are 2^36 blocks of AES. This bound keeps an attacker's advantage below 2^-57, as TLS 1.3 does (RFC 8446 §5.5).
	generationBits = 28
)

// keys are those of one generation of a direction.
type keys struct {
	aead cipher.AEAD
	iv   [nonceSize]byte
}

// generations makes one generation's keys after the other, from the secret of a direction. Of the secret nothing
// is kept that an older generation's keys follow from.
type generations struct {
	secret [secretSize]byte
}

// next returns the next generation's keys.
func (g *generations) next() *keys {
	k := new(keys)
	key := expand(g.secret[:], "adverb secure 2 key", keySize)
	copy(k.iv[:], expand(g.secret[:], "adverb secure 2 iv", nonceSize))
	k.aead = must(cipher.NewGCM(must(aes.NewCipher(key))))
	clear(key)
	g.secret = [secretSize]byte(expand(g.secret[:], "adverb secure 2 next", secretSize))
	return k
}

func expand(prk []byte, info string, n int) []byte {
	return must(hkdf.Expand(sha256.New, prk, info, n))
}

// must is for calls that fail only for lengths that are constants here.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// frame has the data of a packet that the cipher takes by reference.
type frame struct {
	nonce      [nonceSize]byte
	associated [wire.BTHSize]byte
}

// of prepares for a packet with a number, whose BTH is at the front of b.
func (f *frame) of(k *keys, number uint64, b []byte) {
	f.nonce = k.iv
	n := f.nonce[nonceSize-8:]
	binary.BigEndian.PutUint64(n, binary.BigEndian.Uint64(n)^number)
	copy(f.associated[:], b)
	f.associated[4] = 0 // FECN, BECN and the other bits that routers may change
}

// Sealer protects the packets that one QP sends.
type Sealer struct {
	keys        *keys
	generations generations
	number      uint64 // of the next packet
	bits        int    // generationBits; tests have fewer
	frame       frame
}

// newSealer makes the Sealer of a direction. Nothing else may ever have its secret: see Exchange.
func newSealer(secret []byte) *Sealer {
	s := &Sealer{generations: generations{[secretSize]byte(secret)}, bits: generationBits}
	s.keys = s.generations.next()
	return s
}

// Seal protects a packet of n bytes, BTH and space for the ICRC included, that was written at buf[Lead:]. It returns
// the length of the secured packet, n+Overhead, which is at buf[0:]. The caller writes the ICRC. buf must have room
// for it. Seal allocates nothing, but for a new generation.
func (s *Sealer) Seal(buf []byte, n int) int {
	number := s.number
	s.number++
	if number>>s.bits != 0 && number&(1<<s.bits-1) == 0 {
		s.keys = s.generations.next()
	}
	packet := buf[Lead:]
	copy(buf[:wire.BTHSize], packet)
	copy(buf[sealedAt:sealedAt+innerSize], packet) // where the rest of the BTH was
	buf[0], buf[1] = byte(wire.Secured), 0
	binary.BigEndian.PutUint64(buf[wire.BTHSize:], number)
	s.frame.of(s.keys, number, buf)
	end := Lead + n - wire.ICRCSize
	s.keys.aead.Seal(buf[sealedAt:sealedAt], s.frame.nonce[:], buf[sealedAt:end], s.frame.associated[:])
	return n + Overhead
}

// Verdict is the result of Open.
type Verdict uint8

const (
	Genuine  Verdict = iota
	Forged           // the tag is wrong: not from the peer, or changed on the way
	Replayed         // the packet has come before, or is too old to tell
)

// Opener checks and decrypts the packets that one QP receives.
type Opener struct {
	last, keys, next *keys // of the generations before, of and after the latest packet
	generation       uint64
	generations      generations
	bits             int // generationBits; tests have fewer
	window           window
	frame            frame
}

// newOpener makes the Opener of a direction.
func newOpener(secret []byte) *Opener {
	o := &Opener{generations: generations{[secretSize]byte(secret)}, bits: generationBits}
	o.keys = o.generations.next()
	o.next = o.generations.next()
	return o
}

// Open opens a secured packet, whose opcode and ICRC the caller has checked, into dst, which has Space bytes and does
// not overlap the packet. It returns the packet inside, in which four bytes without meaning stand for the ICRC. Only
// a genuine packet changes the Opener. Open allocates nothing, but for a new generation.
func (o *Opener) Open(dst, packet []byte) ([]byte, Verdict) {
	n := len(packet) - wire.ICRCSize
	if len(packet) < minSize || n-sealedAt+wire.SETHSize > min(len(dst), Space) {
		return nil, Forged
	}
	number := binary.BigEndian.Uint64(packet[wire.BTHSize:])
	k := o.keysFor(number >> o.bits)
	if k == nil {
		return nil, Forged
	}
	if !o.window.fresh(number) {
		return nil, Replayed
	}
	o.frame.of(k, number, packet)
	// The BTH's other two words go before the decrypted bytes, its first one before those.
	plain, err := k.aead.Open(dst[:wire.SETHSize], o.frame.nonce[:], packet[sealedAt:n], o.frame.associated[:])
	if err != nil {
		return nil, Forged
	}
	copy(plain, plain[wire.SETHSize:wire.SETHSize+innerSize])
	copy(plain[innerSize:wire.BTHSize], packet[innerSize:])
	o.window.add(number)
	o.advance(number >> o.bits)
	return plain[:len(plain)+wire.ICRCSize], Genuine
}

// keysFor returns the keys of a generation, or nil where a packet cannot be of it.
func (o *Opener) keysFor(generation uint64) *keys {
	switch generation {
	case o.generation:
		return o.keys
	case o.generation + 1:
		return o.next
	case o.generation - 1:
		return o.last
	}
	return nil
}

// advance moves on to the generation of a genuine packet. The keys after it are made at once, so that
// forged packets cost none.
func (o *Opener) advance(generation uint64) {
	if generation != o.generation+1 {
		return
	}
	o.generation = generation
	o.last, o.keys, o.next = o.keys, o.next, o.generations.next()
}

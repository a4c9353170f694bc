package cm

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
)

// idSource deals communication IDs and transaction IDs. Strangers to a connection must not be able to guess
// its communication IDs: messages that name both of them are believed. And an ID that was used
// must come back as late as possible: messages of its old connection may be under way. So the IDs are a
// count, permuted by a Feistel network whose round function has a secret key. The count of N bits goes
// through all of 2^N IDs before one comes again.
type idSource struct {
	block   cipher.Block
	in, out [aes.BlockSize]byte
	count   uint32
	tid     uint64 // the last that was used
}

const idRounds = 10 // of the Feistel network: many, since its halves are short

func (s *idSource) init(secret [aes.BlockSize]byte) {
	s.block, _ = aes.NewCipher(secret[:]) // fails only for other lengths
	s.tid = s.prf(idRounds, 0)
	s.count = uint32(s.prf(idRounds+1, 0))
}

// prf is a function that nobody knows without the key.
func (s *idSource) prf(round, v uint32) uint64 {
	binary.BigEndian.PutUint32(s.in[:], round)
	binary.BigEndian.PutUint32(s.in[4:], v)
	s.block.Encrypt(s.out[:], s.in[:])
	return binary.BigEndian.Uint64(s.out[:])
}

// next returns the next number of 1 to 32 bits.
func (s *idSource) next(bits int) uint32 {
	low := (bits + 1) / 2
	a, b := s.count&(1<<bits-1)>>low, s.count&(1<<low-1)
	s.count++
	for r := range uint32(idRounds) {
		if r%2 == 0 {
			a ^= uint32(s.prf(r, b)) & (1<<(bits-low) - 1)
		} else {
			b ^= uint32(s.prf(r, a)) & (1<<low - 1)
		}
	}
	return a<<low | b
}

// hasID reports whether a communication ID is free, or will be when so many are given back.
func (m *Machine) hasID(freed int) bool {
	return len(m.conns)+len(m.sidrs)-freed < int(min(maxConns, uint64(1)<<m.cfg.IDBits-1))
}

// newID finds a communication ID for a connection or a SIDR exchange.
func (m *Machine) newID() (uint32, error) {
	if !m.hasID(0) {
		return 0, ErrNoIDs
	}
	mask := uint32(uint64(1)<<m.cfg.IDBits - 1)
	for {
		id := m.cfg.IDBase&^mask | m.ids.next(m.cfg.IDBits)
		if id == 0 { // which stands for an unknown ID
			continue
		}
		if m.conns[id] == nil && m.sidrs[id] == nil {
			return id, nil
		}
	}
}

func (m *Machine) newTID() uint64 {
	m.ids.tid++
	return m.ids.tid
}

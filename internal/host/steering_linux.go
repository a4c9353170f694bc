//go:build !adverb_portable

package host

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// steering keeps the program of an address up to date. To find out which process is behind
// which socket it sends a datagram to each index, which the program delivers there, and
// whoever receives it answers with its blocks. Beyond the last index the kernel goes by its hash, so
// a process that answers twice marks the end.
type steering struct {
	link *Link

	wanted chan struct{} // a renewal is due
	done   chan struct{}
	ended  chan struct{}

	mu      sync.Mutex
	nonce   uint64         // of the probes under way
	answers map[int]answer // to them, by index
	changed chan struct{}  // an answer has come
}

// answer is who is behind a socket: the block that its process gives as its own, and all of them.
type answer struct {
	process uint32
	blocks  []uint32
}

func (a answer) equal(b answer) bool {
	return a.process == b.process && slices.Equal(a.blocks, b.blocks)
}

func (s *steering) init(l *Link) {
	*s = steering{
		link: l, wanted: make(chan struct{}, 1), done: make(chan struct{}), ended: make(chan struct{}), changed: make(chan struct{}, 1),
	}
	go s.run()
}

func (s *steering) renew() {
	select {
	case s.wanted <- struct{}{}:
	default:
	}
}

func (s *steering) close() {
	close(s.done)
	<-s.ended
}

// run makes the program anew when that is due, not too often.
func (s *steering) run() {
	defer close(s.ended)
	pause := renewMin
	known := map[int]answer{} // as of the latest program
	for {
		select {
		case <-s.wanted:
		case <-s.done:
			return
		}
		found := s.survey(known)
		select {
		case <-s.done: // the survey may have ended early
			return
		default:
		}
		// Traffic for blocks that no socket of this address has, or for stopped processes, keeps
		// asking for a renewal that finds nothing new.
		pause = min(2*pause, renewMax)
		if !maps.EqualFunc(found, known, answer.equal) {
			pause = renewMin
		}
		known = found
		if len(known) > 0 {
			// A kernel that takes no program leaves the work to those who pass on.
			_ = s.link.Steer(program(steerBy(known)))
		}
		select {
		case <-time.After(pause):
		case <-s.done:
			return
		}
	}
}

// survey asks every socket of the address who it is. Of those that do not answer, as while a
// process is stopped, it assumes what was known.
func (s *steering) survey(known map[int]answer) map[int]answer {
	s.mu.Lock()
	s.nonce = rand.Uint64()
	s.answers = map[int]answer{}
	nonce := s.nonce
	s.mu.Unlock()
	timeout := time.After(probeTime)
	again := time.NewTicker(probeAgain)
	defer again.Stop()
	probes := max(firstProbes, len(known)+2)
	flow := uint32(0)
	s.probe(0, probes, nonce, flow)
	for {
		found, end, whole := s.evaluate(known)
		if end >= 0 && whole {
			return found
		}
		if end < 0 && len(found) > probes/2 && probes < maxProbes { // there may be more
			s.probe(probes, 2*probes, nonce, flow)
			probes *= 2
			continue
		}
		select {
		case <-s.changed:
		case <-again.C:
			// From another port, so that the kernel's hash gives what is beyond the last socket to
			// another process: the one before may be stopped.
			flow++
			s.probe(0, probes, nonce, flow)
		case <-timeout:
			return found
		case <-s.done:
			return found
		}
	}
}

// steerBy returns the socket of each block.
func steerBy(known map[int]answer) map[uint32]int {
	steer := map[uint32]int{}
	for i, a := range known {
		for _, b := range a.blocks {
			steer[b] = i
		}
	}
	return steer
}

// evaluate sorts the answers. end is the number of sockets, or -1 if it is not known yet; whole
// reports whether each of them has answered.
func (s *steering) evaluate(known map[int]answer) (found map[int]answer, end int, whole bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := map[uint32]int{} // the lowest index by process
	for i, a := range s.answers {
		if j, ok := first[a.process]; !ok || i < j {
			first[a.process] = i
		}
	}
	end = -1
	for i, a := range s.answers {
		if i != first[a.process] && (end < 0 || i < end) {
			end = i
		}
	}
	found, whole = map[int]answer{}, true
	for i := 0; end < 0 || i < end; i++ {
		if end < 0 && i > maxProbes {
			break
		}
		if a, ok := s.answers[i]; ok {
			found[i] = a
			continue
		}
		if end >= 0 {
			whole = false
		}
		if a, ok := known[i]; ok {
			if _, elsewhere := first[a.process]; !elsewhere {
				found[i] = a
			}
		}
	}
	return found, end, whole
}

// probePayload is what a probe holds behind its headers: nonce and the block to answer to.
const probePayload = 8 + 4

// probe sends a datagram to each socket of the indexes [from, to) that has not answered: a UD
// SEND to the QPN that stands for it.
func (s *steering) probe(from, to int, nonce uint64, flow uint32) {
	l := s.link
	owners := l.netdev.owners.Load()
	if owners == nil {
		return
	}
	src := l.Source(flow)
	sums := wire.NewFlow(src, l.Addr())
	var payload [probePayload]byte
	binary.BigEndian.PutUint64(payload[:], nonce)
	binary.BigEndian.PutUint32(payload[8:], owners.self)
	var batch []link.Datagram
	for i := from; i < to; i++ {
		if s.answered(i) {
			continue
		}
		p := wire.Packet{
			BTH:     wire.BTH{Opcode: wire.UDSendOnly, PKey: 0xffff, DestQP: controlBlock<<blockBits | uint32(i)},
			DETH:    wire.DETH{SrcQP: 1},
			Payload: payload[:],
		}
		b := p.AppendTo(nil)
		sums.Seal(0, b)
		batch = append(batch, link.Datagram{Src: src, Dst: l.Addr(), Payload: b})
	}
	l.Send(batch)
}

func (s *steering) answered(index int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.answers[index]
	return ok
}

// probed answers a probe that has reached this socket. Only this host's own are answered, and
// only to a mailbox, so that nobody outside learns or causes anything.
func (s *steering) probed(d *link.Datagram, index int) {
	var p wire.Packet
	l := s.link
	owners := l.netdev.owners.Load()
	if owners == nil || d.Src.Addr() != l.Addr().Addr() || p.Decode(d.Payload) != nil || p.Opcode != wire.UDSendOnly || len(p.Payload) != probePayload {
		return
	}
	m := message{
		kind: hereMessage, from: owners.self, nonce: binary.BigEndian.Uint64(p.Payload),
		addr: l.Addr().Addr(), index: index, blocks: l.netdev.blocks(),
	}
	to := binary.BigEndian.Uint32(p.Payload[8:])
	switch {
	case to == m.from:
		s.here(&m)
	case to < numBlocks:
		owners.answer(to, &m)
	}
}

// here takes an answer.
func (s *steering) here(m *message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.nonce != s.nonce {
		return
	}
	s.answers[m.index] = answer{process: m.from, blocks: m.blocks}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

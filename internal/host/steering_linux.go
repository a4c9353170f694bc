//go:build !adverb_portable

package host

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// steering keeps the program of an address up to date. To find out which process is behind
// which socket it sends a datagram to each index, which the program delivers there, and
// whoever receives it answers with its blocks. Beyond the last index the kernel goes by its hash, so
// a process that answers twice marks the end.
//
// Strays tell that the program is out of date, but those that stray to a process that is stopped
// tell nobody. So whenever nobody has asked for a while, somebody does.
type steering struct {
	link *Link

	wanted chan struct{} // a renewal is due
	hurry  chan struct{} // and not only after the pause
	done   chan struct{}
	ended  chan struct{}
	ready  chan struct{} // closed once the first survey is over

	mu      sync.Mutex
	nonce   uint64         // of the probes under way
	answers map[int]answer // to them, by index
	changed chan struct{}  // an answer has come
	members []uint32       // the processes at the address, by the block that each gives as its own

	asked atomic.Int64 // when another process's latest probe came, in ns of Unix time
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
		link: l, wanted: make(chan struct{}, 1), hurry: make(chan struct{}, 1), done: make(chan struct{}), ended: make(chan struct{}), changed: make(chan struct{}, 1), ready: make(chan struct{}),
	}
	go s.run()
}

func (s *steering) renew() { signal(s.wanted) }

// renewNow does not wait until the pause after the latest renewal ends: this process has something new.
func (s *steering) renewNow() {
	signal(s.wanted)
	signal(s.hurry)
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
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
	var ready sync.Once
	check := time.NewTimer(checkTime)
	defer check.Stop()
	for {
		checking := false
		select {
		case <-s.wanted:
		case <-check.C:
			s.link.netdev.tryStandIn(s.link)
			if asked := time.Unix(0, s.asked.Load()); len(known) < 2 || time.Since(asked) < checkTime {
				check.Reset(checkTime + rand.N(checkTime/4))
				continue
			}
			checking = true
		case <-s.done:
			return
		}
		found, whole := s.survey(known)
		if whole && len(known) == 0 && s.own(found) == noSocket {
			// As long as there is no program, the kernel's hash gives all probes to somebody.
			_ = s.link.Steer(program(nil, noSocket))
			found, _ = s.survey(known)
		}
		own := s.own(found)
		if own == noSocket && s.link.netdev.owners.Load() != nil { // this process has had no time to receive
			s.renew()
		}
		select {
		case <-s.done: // the survey may have ended early
			return
		default:
		}
		// Traffic for blocks that no socket of this address has, or for stopped processes, keeps
		// asking for a renewal that finds nothing new.
		if pause = min(2*pause, renewMax); checking || !maps.EqualFunc(found, known, answer.equal) {
			pause = renewMin
		}
		known = found
		s.remember(known)
		if own != noSocket {
			// A kernel that takes no program leaves the work to those who pass on.
			_ = s.link.Steer(program(steerBy(known), own))
			ready.Do(func() { close(s.ready) })
		}
		check.Reset(checkTime + rand.N(checkTime/4)) // so that not all ask at once
		select {
		case <-time.After(pause):
		case <-s.hurry:
		case <-s.done:
			return
		}
	}
}

func (s *steering) remember(known map[int]answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members = s.members[:0]
	for _, a := range known {
		s.members = append(s.members, a.process)
	}
}

// others returns the other processes at the address, as of the latest survey.
func (s *steering) others() (processes []uint32) {
	owners := s.link.netdev.owners.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.members {
		if owners == nil || p != owners.self {
			processes = append(processes, p)
		}
	}
	return processes
}

// own returns the index of this process's socket.
func (s *steering) own(known map[int]answer) uint32 {
	if owners := s.link.netdev.owners.Load(); owners != nil {
		for i, a := range known {
			if a.process == owners.self {
				return uint32(i)
			}
		}
	}
	return noSocket
}

// survey asks every socket of the address who it is. Of those that do not answer, as while a
// process is stopped, it assumes what was known; whole reports that there are none of these.
func (s *steering) survey(known map[int]answer) (found map[int]answer, whole bool) {
	s.mu.Lock()
	s.nonce = rand.Uint64()
	s.answers = map[int]answer{}
	nonce := s.nonce
	s.mu.Unlock()
	timeout := time.After(probeTime)
	wait := probeAgain
	again := time.NewTimer(wait)
	defer again.Stop()
	probes := firstProbes // how many there are at least, and how many have been asked
	if len(known) > 0 {
		probes = len(known) + 2
	}
	asked, window, flow := 0, probeWindow, uint32(0)
	for {
		found, end, whole := s.evaluate(known)
		if end >= 0 && whole {
			return found, true
		}
		if end < 0 && len(found) > probes/2 && probes < maxProbes { // there may be more
			probes *= 2
		}
		if n := min(probes, s.answered()+window); n > asked {
			s.probe(asked, n, nonce, flow)
			asked = n
		}
		select {
		case <-s.changed:
		case <-again.C:
			// From another port, so that the kernel's hash gives what is beyond the last socket to
			// another process: the one before may be stopped.
			flow++
			s.probe(0, asked, nonce, flow)
			window += probeWindow // some may never answer
			wait *= 2
			again.Reset(wait)
		case <-timeout:
			return found, false
		case <-s.done:
			return found, false
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
				// What is for nobody in particular must not go to a process that is stopped.
				a.blocks = slices.DeleteFunc(slices.Clone(a.blocks), func(b uint32) bool { return b == specialBlock })
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
		if s.hasAnswered(i) {
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

// answered returns how many indexes there are answers for.
func (s *steering) answered() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.answers)
}

func (s *steering) hasAnswered(index int) bool {
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
		addr: l.Addr().Addr(), index: index, blocks: l.netdev.blocks(l.Addr().Addr()),
	}
	to := binary.BigEndian.Uint32(p.Payload[8:])
	switch {
	case to == m.from:
		s.here(&m)
	case to < numBlocks:
		s.asked.Store(time.Now().UnixNano())
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
	signal(s.changed)
}

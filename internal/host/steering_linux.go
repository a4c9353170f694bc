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

var start = time.Now().Add(-time.Hour)

// sinceStart is a monotonic time. The wall clock may be set back, and then nothing would seem to be due for long.
func sinceStart() time.Duration { return time.Since(start) }

// steering keeps the BPF program of an address up to date. A survey finds out which process is behind
// which socket: it sends a probe to each index, the program delivers the probe to the socket of
// that index, and the process that receives the probe answers with its blocks. Beyond the last index the
// kernel picks a socket by its hash. So the first index at which a process answers again is the
// end.
//
// A process that receives strays, which are datagrams for another process's block, knows that the program is out of date.
// But a process that is stopped notices no strays. So if nobody has made a survey for a while, one of the processes makes
// a survey.
type steering struct {
	link *Link

	wanted   chan struct{} // cap 1: a renewal is due
	hurry    chan struct{} // cap 1: the renewal must not wait for the end of the pause
	done     chan struct{}
	ended    chan struct{}
	surveyed chan struct{} // closed once a survey has found this process's own socket

	mu      sync.Mutex
	nonce   uint64         // of the probes under way
	answers map[int]answer // to them, by index
	changed chan struct{}  // cap 1: an answer has come
	members []uint32       // the processes at the address, each by the block that it answers to
	probers []uint32       // processes that have probed this one since the latest survey

	lastProbed atomic.Int64 // when the latest probe of another process came: sinceStart then
}

// answer says which process is behind a socket.
type answer struct {
	process uint32   // the block that the process answers to
	blocks  []uint32 // the blocks that the process has claimed
}

func (a answer) equal(b answer) bool {
	return a.process == b.process && slices.Equal(a.blocks, b.blocks)
}

func (s *steering) init(l *Link) {
	*s = steering{
		link:   l,
		wanted: make(chan struct{}, 1), hurry: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		done: make(chan struct{}), ended: make(chan struct{}), surveyed: make(chan struct{}),
	}
	go s.run()
}

func (s *steering) renew() { signal(s.wanted) }

// renewNow is renew for a process that has claimed a block or opened a socket: the renewal does not wait for the end of
// the pause after the latest one.
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

// run renews the program when that is due, but not too often.
func (s *steering) run() {
	defer close(s.ended)
	pause := renewMin
	known := map[int]answer{} // as of the latest program
	var firstSurvey sync.Once
	check := time.NewTimer(checkTime)
	defer check.Stop()
	for {
		checking := false
		select {
		case <-s.wanted:
		case <-check.C:
			s.link.netdev.tryStandIn(s.link)
			s.link.netdev.appoint(s.link)
			if len(known) < 2 || sinceStart()-time.Duration(s.lastProbed.Load()) < checkTime {
				check.Reset(checkTime + rand.N(checkTime/4))
				continue
			}
			checking = true
		case <-s.done:
			return
		}
		found, whole := s.survey(known)
		if whole && len(known) == 0 && s.own(found) == noSocket {
			// Without a program the kernel picks a socket for each probe by its hash.
			_ = s.link.Steer(program(nil, 0, noSocket))
			found, _ = s.survey(known)
		}
		own := s.own(found)
		if own == noSocket && s.link.netdev.owners.Load() != nil { // this process has not received its own probe in time
			s.renew()
		}
		select {
		case <-s.done: // the survey may have ended early
			return
		default:
		}
		// Traffic for blocks that no socket of this address has, and traffic for stopped processes, asks
		// for renewals again and again that find nothing new.
		if pause = min(2*pause, renewMax); checking || !maps.EqualFunc(found, known, answer.equal) {
			pause = renewMin
		}
		known = found
		s.remember(known)
		if own != noSocket {
			// If the kernel takes no program, datagrams are passed on all the time.
			if steer := steerBy(known); s.link.Steer(program(steer, maxSteered, own)) != nil && len(steer) > fewSteered {
				_ = s.link.Steer(program(steer, fewSteered, own))
			}
			firstSurvey.Do(func() { close(s.surveyed) })
		}
		check.Reset(checkTime + rand.N(checkTime/4)) // at random, so that not all processes check at once
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

// noteProber takes note of a process that has shown itself.
func (s *steering) noteProber(process uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.probers, process) && len(s.probers) < maxCandidates {
		s.probers = append(s.probers, process)
	}
}

// candidates returns processes that are perhaps at the address, those that are known first.
func (s *steering) candidates() []uint32 {
	all := s.others()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.probers {
		if !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all[:min(len(all), maxCandidates)]
}

// dismiss forgets a process that is not there.
func (s *steering) dismiss(process uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.probers = slices.DeleteFunc(s.probers, func(p uint32) bool { return p == process })
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

// survey finds out the process behind every socket of the address. A process that is stopped does
// not answer. For its socket survey assumes the process that was known; whole reports that all have answered.
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
	probes := firstProbes // how many sockets to look for
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
		if n := min(probes, s.answerCount()+window); n > asked {
			s.probe(asked, n, nonce, flow)
			asked = n
		}
		select {
		case <-s.changed:
		case <-again.C:
			// Probes beyond the last socket go where the kernel's hash says, which may be a stopped
			// process. From another port the hash gives them to another process.
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

// evaluate returns which process is behind which socket, according to the answers so far. end is
// the number of sockets, or -1 while the number is not known. whole reports that all sockets have answered.
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
				// The process may be stopped, and must not get datagrams for no process in particular.
				a.blocks = slices.DeleteFunc(slices.Clone(a.blocks), func(b uint32) bool { return b == specialBlock })
				found[i] = a
			}
		}
	}
	return found, end, whole
}

// probePayload is the length of a probe's payload: a nonce and the block to answer to.
const probePayload = 8 + 4

// probe sends a probe to each socket of the indexes [from, to) that has not answered. A probe is a
// UD SEND to the QPN that stands for the socket.
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
			BTH:     wire.BTH{Opcode: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQP: controlBlock<<blockBits | uint32(i)},
			DETH:    wire.DETH{SrcQP: wire.GSIQPN},
			Payload: payload[:],
		}
		b := p.AppendTo(nil)
		sums.Seal(0, b)
		batch = append(batch, link.Datagram{Src: src, Dst: l.Addr(), Payload: b})
	}
	l.Send(batch)
}

// answerCount returns the number of sockets that have answered.
func (s *steering) answerCount() int {
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

// probed answers a probe that has reached this socket. It answers only probes of this host, and
// only to a mailbox. So nobody outside learns or causes anything.
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
		s.lastProbed.Store(int64(sinceStart()))
		s.noteProber(to)
		l.netdev.answer(to, &m)
	}
}

// here takes an answer to a probe.
func (s *steering) here(m *message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.nonce != s.nonce {
		return
	}
	s.answers[m.index] = answer{process: m.from, blocks: m.blocks}
	signal(s.changed)
}

package demo

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/internal/clock"
	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/meaning"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// The network of a scene.
const (
	flight    = 10 * time.Microsecond // of a packet
	etherMTU  = 1500
	sceneSeed = 7
	maxSteps  = 1 << 16 // a scene has some hundred
	sceneCQ   = 32      // entries
)

// zeroTime is when a scene begins, for captures.
var zeroTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// stage is two hosts on a network in memory. One goroutine plays everything, by a clock that the stage moves: each run of a
// scene is the same, to the byte and to the nanosecond.
type stage struct {
	w            io.Writer
	quiet, trace bool

	now  time.Duration
	net  *sim.Network
	rng  *rand.Rand
	a, b *node
	step int

	instant bool   // InfiniBand, whose packets take no time
	routed  bool   // with a router between A and B
	cable   []byte // the SEND on InfiniBand, from the LRH to the VCRC
	smps    *smpTeller

	captures captures
	sent     [][]byte // all packets, from the BTH to the ICRC
}

// node is one of the two: a device with its objects.
type node struct {
	s    *stage
	name string
	addr netip.Addr
	hca  *hca.Device
	pd   *verbs.PD
	cq   *verbs.CQ
	gid  verbs.GID
	iova uint64 // the address of the next region
	ids  uint64 // of work requests
	done []completion
}

// mistake is an error in a scene, which only a defect of ours can cause, or a machine without memory.
type mistake struct{ err error }

func (s *stage) must(err error) {
	if err != nil {
		panic(mistake{err})
	}
}

// must returns the result of a call, which has no error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(mistake{err})
	}
	return v
}

// play plays a scene, and then draws its packets if they are asked for.
func play(w io.Writer, f flags, scene func(*stage)) (err error) {
	s := &stage{w: w, quiet: f.quiet, trace: f.trace, rng: rand.New(rand.NewPCG(sceneSeed, 0))}
	if err := errors.Join(s.perform(f, (*stage).onEthernet, scene), s.close()); err != nil {
		return err
	}
	return s.captures.draw(w, f, f.quiet)
}

// perform opens the two hosts, and plays a scene.
func (s *stage) perform(f flags, open, scene func(*stage)) (err error) {
	defer func() {
		switch x := recover().(type) {
		case nil:
		case mistake:
			err = x.err
		default:
			panic(x)
		}
	}()
	s.must(s.captures.open(f, func() time.Time { return zeroTime.Add(s.now) }))
	s.must(s.captures.keepFrames(func() time.Time { return zeroTime.Add(s.now) }))
	open(s)
	scene(s)
	return nil
}

// onEthernet opens A and B on RoCEv2.
func (s *stage) onEthernet() {
	s.net = s.etherNet()
	s.a = s.open("A", netip.AddrFrom4([4]byte{10, 0, 0, 1}), 0xa0000000)
	s.b = s.open("B", netip.AddrFrom4([4]byte{10, 0, 0, 2}), 0xb0000000)
}

func (s *stage) etherNet() *sim.Network {
	return sim.New(sim.Config{Seed: sceneSeed, Delay: flight, MTU: etherMTU, MaxTrain: 1, Now: func() time.Duration { return s.now }})
}

// open opens a host's device. It keeps to the specification alone, as toward a card.
func (s *stage) open(name string, addr netip.Addr, memory uint64) *node {
	return s.openOn(s.net.Netdev("demo_"+name, addr), name, addr, memory)
}

func (s *stage) openOn(netdev link.Netdev, name string, addr netip.Addr, memory uint64) *node {
	h := &node{s: s, name: name, addr: addr, iova: memory}
	c := hca.Config{
		Name: "demo_" + name, Driven: true, Standard: true, Clock: clock.Told(func() time.Duration { return s.now }),
		Random: s.rng.Uint32, IOVA: func() (uint64, bool) { return h.iova, true },
	}
	if !s.instant { // captures know Ethernet alone
		c.Middleware = s.captures.middleware()
	}
	c.Middleware = append(c.Middleware, func(l link.Link) link.Link { return &watched{l, s} })
	c.Journal = s.captures.recorder(nil)
	h.hca = must(hca.Open(netdev, c))
	dev := verbs.NewDevice(h.hca)
	h.pd, h.cq, h.gid = must(dev.AllocPD()), must(dev.CreateCQ(sceneCQ)), must(dev.GID(1, 0)).GID
	return h
}

func (s *stage) close() error {
	var errs []error
	for _, h := range []*node{s.a, s.b} {
		if h != nil {
			errs = append(errs, h.hca.Close())
		}
	}
	return errors.Join(append(errs, s.captures.close())...)
}

// watched keeps each packet that a device sends, and prints it if a trace is asked for.
type watched struct {
	link.Link
	s *stage
}

// Send implements link.Link.
func (l *watched) Send(batch []link.Datagram) error {
	s := l.s
	for i := range batch {
		d := &batch[i]
		s.sent = append(s.sent, bytes.Clone(d.Payload))
		if !s.trace {
			continue
		}
		text := "cannot be decoded"
		var p wire.Packet
		if err := p.Decode(d.Payload); err == nil {
			text = p.String()
		}
		fmt.Fprintf(s.w, "%.6f %v > %v %s\n", s.now.Seconds(), d.Src.Addr(), d.Dst.Addr(), text)
	}
	return l.Link.Send(batch)
}

// textWidth is that of the narration.
const textWidth = 100

// say prints a paragraph.
func (s *stage) say(format string, args ...any) { s.paragraph("", "", fmt.Sprintf(format, args...)) }

// next prints a paragraph with the number of a step.
func (s *stage) next(format string, args ...any) {
	if s.step++; !s.quiet {
		fmt.Fprintln(s.w)
	}
	s.paragraph(fmt.Sprintf("%d. ", s.step), "   ", fmt.Sprintf(format, args...))
}

// note prints a fact that belongs to a step: an entry of a queue, a value.
func (s *stage) note(format string, args ...any) {
	s.paragraph("     ", "       ", fmt.Sprintf(format, args...))
}

func (s *stage) paragraph(first, further, text string) {
	if !s.quiet {
		fmt.Fprint(s.w, meaning.Wrap(text, textWidth, first, further))
	}
}

// until lets time pass until done returns true. Only devices and the network act meanwhile.
func (s *stage) until(done func() bool) {
	if !s.advance(done, forever) {
		s.must(errors.New("nothing more happens, and the scene is not over"))
	}
}

// pass lets so much time pass.
func (s *stage) pass(d time.Duration) {
	end := s.now + d
	s.advance(func() bool { return false }, end)
	s.now = end
}

const forever = time.Hour

// advance moves the clock from event to event until done returns true. It returns false if nothing happens until end.
func (s *stage) advance(done func() bool, end time.Duration) bool {
	for range maxSteps {
		at := end + 1
		for _, h := range []*node{s.a, s.b} {
			h.hca.Drive(false)
			h.poll()
		}
		if done() {
			return true
		}
		for _, h := range []*node{s.a, s.b} {
			if d, ok := h.hca.NextDrive(); ok {
				at = min(at, s.now+d)
			}
		}
		if s.instant {
			continue
		}
		if d, ok := s.net.NextDelivery(); ok {
			at = min(at, d)
		}
		if at > end {
			return false
		}
		s.now = max(s.now, at)
	}
	s.must(fmt.Errorf("no end after %d steps", maxSteps))
	return false
}

// poll takes the completions of the host's CQ, and notes the time.
func (h *node) poll() {
	var wc [1]verbs.WC
	for must(h.cq.Poll(wc[:])) == 1 {
		h.done = append(h.done, completion{wc[0], h.s.now})
	}
}

// completion is a CQE, and when it came.
type completion struct {
	verbs.WC
	at time.Duration
}

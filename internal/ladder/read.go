package ladder

import (
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net/netip"
	"slices"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/diagnose"
	"github.com/adverb-rdma/adverb/internal/journal"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// maxPackets bounds the memory of a ladder, and is far more than anybody reads.
const maxPackets = 500_000

// record is a packet as one capture has it.
type record struct {
	Packet
	time     int64 // nanoseconds since 1970
	file     int32
	frame    int   // in that file
	source   int32 // a file's interface
	src, dst netip.Addr
	key      uint64 // equal for equal packets between the same addresses
	srcQPN   uint32 // UD
	srcPort  uint16 // of iWARP
	dstPort  uint16
	message  uint32 // bytes of the message, of packets with a RETH
	va       uint64 // the remote memory that the packet names, and rkey with it
	rkey     uint32
	touches  bool // it names remote memory
	syndrome wire.Syndrome
	verdict  capture.Verdict
	decoded  bool
	cm       cmIDs
	id       uint16 // the IPv4 identification
	cooked   bool   // of a capture of all interfaces
	way      capture.Direction
	twin     bool  // another record stands for the packet
	original int   // of a twin: the index of that record
	place    int32 // where it was captured: its source, and of a device that sends to itself the direction; then that on a page
	arrival  int   // the place of the record at the other end, if any

	event   journal.Kind // 0 for a packet
	eventID uint64       // the event's wr_id
}

// Collector reads captures.
type Collector struct {
	records []record
	seed    maphash.Seed
	files   int
	sources map[[2]int]int32
	kinds   map[capture.Kind]int
	left    int // packets beyond maxPackets
	trains  int
	units   int // MPA frames and FPDUs of iWARP

	cutEarly int // packets without a whole BTH
	events   []event

	eventWords int // bytes of the events' words
	eventsLeft int // beyond maxEvents or maxEventWords
	cut        []error
}

// NewCollector returns a Collector without packets.
func NewCollector() *Collector {
	return &Collector{seed: maphash.MakeSeed(), sources: map[[2]int]int32{}, kinds: map[capture.Kind]int{}}
}

// Read reads a capture to its end. A capture that ends in the middle of a frame counts as far as it goes.
func (c *Collector) Read(r io.Reader) error {
	file := c.files
	c.files++
	in, err := capture.NewReader(r)
	if err != nil {
		return err
	}
	in.Journal = func(e journal.Event) { c.addEvent(file, e) }
	var d capture.Decoder
	streams := units{c: c, file: file, streams: map[unitsID]*unitStream{}}
	tcp := diagnose.New(diagnose.Options{Units: streams.take})
	for {
		f, err := in.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, capture.ErrCut):
			c.cut = append(c.cut, err)
			return nil
		case err != nil:
			return err
		}
		p, kind := d.Decode(f)
		c.kinds[kind]++
		if kind == capture.KindCut && p.Version != 0 {
			c.cutEarly++
		}
		if kind == capture.KindTCP {
			tcp.Frame(f)
		}
		if kind != capture.KindRoCE {
			continue
		}
		if len(c.records) >= maxPackets {
			c.left++
			continue
		}
		if n := d.Train(); n > 1 {
			c.trains++
			for i := range n {
				c.add(file, d.Part(i))
			}
			continue
		}
		c.add(file, p)
	}
}

func (c *Collector) add(file int, p *capture.Packet) {
	source := c.source(file, p.Frame.Interface)
	t := &p.Transport
	r := record{
		time: p.Frame.Time, file: int32(file), source: source, src: p.Src.Addr(), dst: p.Dst.Addr(),
		frame: p.Frame.Number, decoded: p.Err == nil, verdict: p.ICRC(), id: p.ID, way: p.Frame.Direction,
		cooked: p.Frame.Link == capture.LinkSLL || p.Frame.Link == capture.LinkSLL2,
	}
	r.Packet = Packet{Frame: p.Frame.Number, Took: -1, Opcode: t.Opcode, QPN: t.DestQP, PSN: t.PSN, AckReq: t.AckReq}
	var h maphash.Hash
	h.SetSeed(c.seed)
	a, b := r.src.As16(), r.dst.As16()
	h.Write(a[:])
	h.Write(b[:])
	h.Write(p.Datagram)
	r.key = h.Sum64()
	if r.decoded {
		r.describe(t)
	} else {
		r.Fields = p.Err.Error()
		if p.Cut() && len(p.Datagram) < t.HeaderLen() {
			r.Fields = "its other headers were not captured"
		}
	}
	if p.Cut() {
		r.note("captured in part")
	}
	if p.TrafficClass&3 == 3 {
		r.note("marked CE: it met congestion")
	}
	c.records = append(c.records, r)
}

// source returns the number of a file's interface.
func (c *Collector) source(file, iface int) int32 {
	at := [2]int{file, iface}
	source, ok := c.sources[at]
	if !ok {
		source = int32(len(c.sources))
		c.sources[at] = source
	}
	return source
}

func (r *record) note(text string) { r.Marks = append(r.Marks, Mark{MarkNote, text}) }

// ordered returns the records by time, with the times since the first. Records of one time keep the order of their file.
func (c *Collector) ordered() []record {
	all := slices.Clone(c.records)
	for i := range all {
		all[i].Marks = slices.Clone(all[i].Marks)
	}
	slices.SortStableFunc(all, func(a, b record) int {
		switch {
		case a.time < b.time:
			return -1
		case a.time > b.time:
			return 1
		}
		return 0
	})
	return all
}

// notes names the packets of the captures that are not in the ladder.
func (c *Collector) notes() (list []string) {
	if c.left > 0 {
		list = append(list, fmt.Sprintf("The first %d packets are drawn. Behind them the captures have %d more; editcap takes a part of a capture.", maxPackets, c.left))
	}
	if c.trains > 0 {
		list = append(list, fmt.Sprintf("%s captured as a train: packets in one piece, which the system left to the card to cut, or joined. They are drawn one by one.", was(c.trains, "frame")))
	}
	if n := c.kinds[capture.KindTCP]; n > 0 {
		words := fmt.Sprintf("%s of TCP %s not drawn: no iWARP was recognized.", count(n, "frame"), are(n))
		if c.units > 0 {
			words = fmt.Sprintf("Of %s of TCP the MPA frames and FPDUs of iWARP are drawn.", count(n, "frame"))
		}
		list = append(list, words)
	}
	if n := c.cutEarly; n > 0 {
		list = append(list, fmt.Sprintf("%s of RoCE %s cut off before the BTH ends, and not drawn: capture at least 100 bytes of each.", count(n, "packet"), are(n)))
	}
	other := -c.cutEarly
	for kind, n := range c.kinds {
		if kind != capture.KindRoCE && kind != capture.KindTCP {
			other += n
		}
	}
	if other > 0 {
		list = append(list, fmt.Sprintf("%s without a RoCE packet %s not drawn.", count(other, "frame"), are(other)))
	}
	if c.eventsLeft > 0 {
		list = append(list, fmt.Sprintf("The first %d records of devices were read, and %d more left out.", len(c.events), c.eventsLeft))
	}
	for range c.cut {
		list = append(list, "A capture ends in the middle of a frame.")
	}
	return list
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func was(n int, what string) string {
	if n == 1 {
		return count(n, what) + " was"
	}
	return count(n, what) + " were"
}

func are(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

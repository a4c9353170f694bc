package ladder

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/adverb-rdma/adverb/internal/iwarp"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// The columns of a page's packets. Each is a row of numbers of variable length, and page/decode.js reads them in the same
// order. Numbers that may be negative are zigzag.
const (
	colTime   = iota // ns since the packet before
	colStream        // index of the streams
	colOpcode        // index of the opcodes
	colFlags         // flag…
	colPSN           // less that of the packet before in its stream, and 1
	colBytes         // of payload
	colFrame         // with flagFrame: less that of the packet before, and 1
	colTook          // with flagTook: ns
	colText          // with flagText: a text
	colMarks         // with flagMarks: how many, and of each the kind and a text
	colMemory        // with flagMemory: index of the regions, the offset less that of the region's packet before, the length
	numColumns
)

// The flags of a packet.
const (
	flagAckReq = 1 << iota
	flagFate0  // the fate, in two bits
	flagFate1
	flagTook
	flagText
	flagMarks
	flagMemory
	flagFrame
)

// columns are the packets of a page.
type columns struct {
	col [numColumns][]byte

	streams  []packedStream
	opcodes  []packedOpcode
	regions  []packedRegion
	texts    *texts
	streamOf map[streamID]int
	opcodeOf map[string]int
	regionOf map[regionID]int

	n     int
	start int64 // of the first packet, ns
	at    int64 // of the latest packet, ns
	frame int
	psns  []int64 // of the latest packet of each stream
	offs  []int64 // of the latest packet of each region
}

// packedStream is the packets from an end to a QP.
type packedStream struct {
	From int    `json:"from"`
	To   int    `json:"to"`
	QPN  uint32 `json:"qpn"`

	// Label names the TCP connection of a stream of iWARP, whose QPN is none.
	Label string `json:"label,omitempty"`

	// Answers is the index of the stream whose requests the responses of this one answer, or -1.
	Answers int `json:"answers"`
}

// packedOpcode is a name, and what the page has to know of it.
type packedOpcode struct {
	Name  string `json:"name"`
	Class string `json:"class"` // request, read, response, readdata: of RC; unacked: requests of UC and UD; iwarp, iwarpread, iwarpanswer; cm; event; other
	Place string `json:"place"` // of the packet in its message: first, middle, last, only; else empty
}

// regionID names remote memory as packets name it.
type regionID struct {
	end  int
	rkey uint32
}

// packedRegion is memory that packets name by one key.
type packedRegion struct {
	End  int    `json:"end"`
	Key  string `json:"key"` // what it is called: rkey, or STag
	RKey string `json:"rkey"`
	Base string `json:"base"` // the least address that the offsets count from
	Size uint64 `json:"size"` // bytes, 0 if it is not known

	base uint64
	rkey uint32
}

func newColumns() *columns {
	return &columns{
		streams: []packedStream{}, opcodes: []packedOpcode{}, regions: []packedRegion{}, // no null in JSON
		texts: newTexts(), streamOf: map[streamID]int{}, opcodeOf: map[string]int{}, regionOf: map[regionID]int{},
	}
}

func (c *columns) put(col int, v uint64)      { c.col[col] = binary.AppendUvarint(c.col[col], v) }
func (c *columns) putSigned(col int, v int64) { c.col[col] = binary.AppendVarint(c.col[col], v) }

// stream returns the index of a stream.
func (c *columns) stream(id streamID) int {
	i, ok := c.streamOf[id]
	if !ok {
		i = len(c.streams)
		c.streamOf[id] = i
		c.streams = append(c.streams, packedStream{From: id.from, To: id.to, QPN: id.qpn, Answers: -1})
		c.psns = append(c.psns, -1)
	}
	return i
}

func (c *columns) opcode(o packedOpcode) int {
	i, ok := c.opcodeOf[o.Name]
	if !ok {
		i = len(c.opcodes)
		c.opcodeOf[o.Name] = i
		c.opcodes = append(c.opcodes, o)
	}
	return i
}

// findRegions finds the least address of each region. It comes before add.
func (c *columns) findRegions(all []*record) {
	for _, r := range all {
		if !r.touches {
			continue
		}
		id := regionID{r.To, r.rkey}
		i, ok := c.regionOf[id]
		if !ok {
			i = len(c.regions)
			c.regionOf[id] = i
			c.regions = append(c.regions, packedRegion{End: r.To, Key: r.keyName(), RKey: fmt.Sprintf("0x%08x", r.rkey), base: r.va, rkey: r.rkey})
			c.offs = append(c.offs, 0)
		}
		c.regions[i].base = min(c.regions[i].base, r.va)
	}
}

// maxOffset is what a number of JavaScript holds exactly, as a difference in zigzag too.
const maxOffset = 1<<51 - 1

// add adds a packet.
func (c *columns) add(r *record) {
	if c.n == 0 {
		c.start, c.at = int64(r.At), int64(r.At)
	}
	c.put(colTime, uint64(int64(r.At)-c.at))
	c.at = int64(r.At)
	s := c.stream(streamID{r.From, r.To, r.QPN})
	if r.isIWARP() && c.streams[s].Label == "" {
		c.streams[s].Label = r.queue()
	}
	c.put(colStream, uint64(s))
	c.put(colOpcode, uint64(c.opcode(r.class())))
	c.putSigned(colPSN, int64(r.PSN)-c.psns[s]-1)
	c.psns[s] = int64(r.PSN)
	c.put(colBytes, uint64(r.Bytes))

	flags := uint64(r.Fate) * flagFate0
	if r.AckReq {
		flags |= flagAckReq
	}
	if r.event != 0 {
		r.Frame = c.frame // it has none of its own
	}
	if r.Frame != c.frame+1 {
		flags |= flagFrame
		c.putSigned(colFrame, int64(r.Frame-c.frame-1))
	}
	c.frame = r.Frame
	if r.Took >= 0 {
		flags |= flagTook
		c.put(colTook, uint64(r.Took))
	}
	if r.Fields != "" {
		flags |= flagText
		c.text(colText, s, r.Fields)
	}
	if len(r.Marks) > 0 {
		flags |= flagMarks
		c.put(colMarks, uint64(len(r.Marks)))
		for _, m := range r.Marks {
			c.put(colMarks, uint64(m.Kind))
			c.text(colMarks, s, m.Text)
		}
	}
	if r.touches {
		i := c.regionOf[regionID{r.To, r.rkey}]
		if off := r.va - c.regions[i].base; off <= maxOffset {
			flags |= flagMemory
			c.put(colMemory, uint64(i))
			c.putSigned(colMemory, int64(off)-c.offs[i])
			c.put(colMemory, uint64(r.message))
			c.offs[i] = int64(off)
		}
	}
	c.put(colFlags, flags)
	c.n++
}

// text adds a text of a stream: its template, and its numbers less those that the template had in the stream before.
func (c *columns) text(col, stream int, text string) {
	template, numbers := c.texts.take(text)
	c.put(col, uint64(template))
	before := c.texts.before(stream, template, len(numbers))
	for i, n := range numbers {
		c.putSigned(col, n-before[i])
		before[i] = n
	}
}

// class says what a page has to know of a packet's opcode.
func (r *record) class() packedOpcode {
	o := r.Opcode
	p := packedOpcode{Name: r.Label(), Class: "other"}
	switch {
	case r.event != 0:
		return packedOpcode{Name: r.event.String(), Class: "event"}
	case r.Name == iwarp.ReadRequest.String():
		return packedOpcode{Name: r.Name, Class: "iwarpread"}
	case r.isIWARP() && r.isAnswer():
		return packedOpcode{Name: r.Name, Class: "iwarpanswer"}
	case r.isIWARP():
		return packedOpcode{Name: r.Name, Class: "iwarp"}
	case r.cm.attr != 0:
		p.Name, p.Class = "CM "+r.cm.attr.String(), "cm"
	case r.decoded && isManagement(r.Fields):
		p.Name, _, _ = strings.Cut(r.Fields, ",")
		p.Class = "cm"
	case !r.decoded:
	case o.IsRead() && o.IsResponse() && o.HasPayload():
		p.Class = "readdata"
	case o.IsRead():
		p.Class = "read"
	case o.IsResponse():
		p.Class = "response"
	case o.IsRequest() && o.Service() != wire.ServiceRC && o.Service() != wire.ServiceXRC:
		p.Class = "unacked"
	case o.IsRequest():
		p.Class = "request"
	}
	switch name := o.String(); {
	case strings.Contains(name, "_FIRST"):
		p.Place = "first"
	case strings.Contains(name, "_MIDDLE"):
		p.Place = "middle"
	case strings.Contains(name, "_LAST"):
		p.Place = "last"
	case strings.Contains(name, "_ONLY"):
		p.Place = "only"
	}
	return p
}

// texts are texts that differ in their numbers alone: a template has places for them. A place is a character
// of numberMark, and one that says how the number is written.
type texts struct {
	list  []string
	index map[string]int
	last  map[[2]int][]int64 // by stream and template: the latest numbers
	parse []int64
}

// A place in a template: the mark, then a base and a least width as characters: 'd' or 'x', and 'a' for 0, 'b' for 1 and on.
const (
	numberMark = '\x01'
	maxDecimal = 15 // digits of one number, which JavaScript holds exactly
	maxHex     = 12
)

func newTexts() *texts {
	return &texts{list: []string{}, index: map[string]int{}, last: map[[2]int][]int64{}}
}

// before returns the numbers that a template had in a stream before, for the caller to change.
func (t *texts) before(stream, template, n int) []int64 {
	key := [2]int{stream, template}
	list, ok := t.last[key]
	if !ok {
		list = make([]int64, n)
		t.last[key] = list
	}
	return list
}

// take returns the template of a text, and its numbers, which are good until the next call.
func (t *texts) take(text string) (template int, numbers []int64) {
	var b strings.Builder
	t.parse = t.parse[:0]
	for i := 0; i < len(text); {
		ch := text[i]
		switch {
		case strings.HasPrefix(text[i:], "0x") && i+2 < len(text) && isHex(text[i+2]):
			end := i + 2
			for end < len(text) && isHex(text[end]) {
				end++
			}
			b.WriteString("0x")
			t.number(&b, text[i+2:end], 16, maxHex)
			i = end
		case ch >= '0' && ch <= '9':
			end := i
			for end < len(text) && text[end] >= '0' && text[end] <= '9' {
				end++
			}
			t.number(&b, text[i:end], 10, maxDecimal)
			i = end
		default:
			if ch == numberMark {
				ch = ' '
			}
			b.WriteByte(ch)
			i++
		}
	}
	form := strings.ToValidUTF8(b.String(), "\ufffd")
	id, ok := t.index[form]
	if !ok {
		id = len(t.list)
		t.index[form] = id
		t.list = append(t.list, form)
	}
	return id, t.parse
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' }

// number takes digits, in pieces of at most most.
func (t *texts) number(b *strings.Builder, digits string, base, most int) {
	for piece := range slices.Chunk([]byte(digits), most) {
		n, _ := strconv.ParseInt(string(piece), base, 64) // of digits that fit
		width := 0
		if piece[0] == '0' && len(piece) > 1 {
			width = len(piece)
		}
		kind := byte('d')
		if base == 16 {
			kind = 'x'
		}
		b.Write([]byte{numberMark, kind, 'a' + byte(width)})
		t.parse = append(t.parse, n)
	}
}

// joined returns all columns, one behind the other, and their lengths.
func (c *columns) joined() (all []byte, lengths []int) {
	for _, col := range c.col {
		all = append(all, col...)
		lengths = append(lengths, len(col))
	}
	return all, lengths
}

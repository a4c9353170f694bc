package iwarp

import (
	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/mpa"
)

// Vec is the list of buffers of one write to the stream, or of one read from it. It is used again and again. The QP fills
// it by its methods.
type Vec struct {
	Bufs  [][]byte
	Bytes int

	spans []mem.Span // whose memory Bufs has: open until release
	list  []mem.Span // those of one FPDU
	stage []byte     // where FPDUs with CRCs or markers are put together
	plain []byte     // an FPDU before it gets its markers
}

// release ends the use of the memory of v, and empties it.
func (v *Vec) release() {
	for _, s := range v.spans {
		s.Release()
	}
	clear(v.spans)
	clear(v.list)
	clear(v.Bufs)
	v.spans, v.Bufs, v.Bytes = v.spans[:0], v.Bufs[:0], 0
}

// add appends the bytes of b behind the first *skip, and counts the skipped bytes off *skip.
func (v *Vec) add(b []byte, skip *uint32) {
	if n := uint32(len(b)); n <= *skip {
		*skip -= n
		return
	}
	b = b[*skip:]
	*skip = 0
	v.Bufs = append(v.Bufs, b)
	v.Bytes += len(b)
}

// addList adds the memory of v.list, as add does. The memory stays open until release.
func (v *Vec) addList(skip *uint32) {
	for _, s := range v.list {
		v.add(s.Bytes(), skip)
	}
	v.spans = append(v.spans, v.list...)
}

// carve returns n bytes of the stage.
func (v *Vec) carve(n int) []byte {
	at := len(v.stage)
	if at+n > cap(v.stage) {
		v.stage = make([]byte, 0, max(stageSize, n)) // FPDUs that are staged stay where they are
		at = 0
	}
	v.stage = v.stage[:at+n]
	return v.stage[at : at+n : at+n]
}

// unstage empties the stage.
func (v *Vec) unstage() { v.stage = v.stage[:0] }

// stageSize is the size of a stage: the FPDUs of one write, with room for the FPDU that goes beyond.
const stageSize = 256<<10 + 2*mpa.MaxFPDU

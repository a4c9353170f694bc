//go:build !adverb_portable

package mem

import (
	"math"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// answer has the host's limits. To ask for them takes a dozen files of /proc and of the control group, so an answer
// serves for answerAge, or until more is wanted than the answer leaves. Other programs and the Go heap may take memory
// meanwhile: the limits are there to refuse a length that no host could hold, and reserve nothing.
type answer struct {
	at    time.Time // zero before the first
	left  room
	areas int // mappings that regions may have: half of those that a process may have

	// allocated is how many bytes were allocated since, less those that were given back. A caller that allocates
	// bytes and fills them at once may not count on the same bytes twice.
	allocated uint64
}

// ask asks the host anew.
func (m *allocator) ask() {
	areas := maxAreasUnknown
	if n, err := m.host.maxMappings(); err == nil {
		areas = n / 2
	}
	m.answer = answer{at: time.Now(), left: m.host.memory(), areas: areas}
}

// fresh returns an answer that is not old.
func (m *allocator) fresh() *answer {
	if m.answer.at.IsZero() || time.Since(m.answer.at) > answerAge {
		m.ask()
	}
	return &m.answer
}

// leaves returns how many bytes are left, or 0 where all have been allocated.
func (a *answer) leaves() uint64 { return a.left.bytes - min(a.left.bytes, a.allocated) }

// takes and gives count bytes that are allocated and given back.
func (a *answer) takes(n uint64) { a.allocated += min(n, math.MaxUint64-a.allocated) }
func (a *answer) gives(n uint64) { a.allocated -= min(n, a.allocated) }

// holds returns an error if the host cannot hold a mapping of so many bytes, of which the program has asked for some.
// Without the check the kernel would grant them, and end a program once they are touched. Only memory in use counts, and
// not memory that others have allocated and not touched: a ring that nothing comes through takes nothing from anybody.
func (m *allocator) holds(size, wanted uint64) error {
	if err := m.host.holdsAddresses(size); err != nil {
		return err
	}
	if wanted <= m.fresh().leaves() {
		return nil
	}
	m.ask()
	if r := m.answer.left; wanted > r.bytes {
		return verbs.Errorf(verbs.ErrLimit, "%d bytes are available (%s): %s", r.bytes, r.limit, r.hint)
	}
	return nil
}

// isFull reports whether regions have all mappings that they may have.
func (m *allocator) isFull() bool {
	if m.areas < m.fresh().areas {
		return false
	}
	m.ask() // the administrator may have raised the limit
	return m.areas >= m.answer.areas
}

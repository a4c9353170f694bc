//go:build amd64 || arm64

package run

import (
	"errors"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/internal/supervisor"
	"github.com/adverb-rdma/adverb/internal/uverbs"
	"github.com/adverb-rdma/adverb/verbs"
)

// memory registers the program's memory: as memory of both, or to be reached by copies.
type memory struct {
	run  *served
	maps bool // not by copies alone

	mu     sync.Mutex
	mapped map[*verbs.MR]*supervisor.Mapped
	begun  time.Time     // when memory was mapped first
	spent  time.Duration // on mapping
}

// A program's threads stand still while memory is mapped: for a millisecond, and half a millisecond more for each MiB. So mapping
// pays for memory that is used again and again: 64 KiB after about ten messages, 8 bytes after a few hundred. A program that registers
// memory for each message does not gain. So mapping may take mostSpent, and from then on an eighth of the time.
const (
	mostSpent      = time.Second
	mostSpentShift = 3
)

// affords reports whether mapping may take more time.
func (m *memory) affords() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.spent <= mostSpent+time.Since(m.begun)>>mostSpentShift
}

// spend counts the time since begin, in which memory was mapped.
func (m *memory) spend(begin time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.begun.IsZero() {
		m.begun = begin
	}
	m.spent += time.Since(begin)
}

// Register implements uverbs.Memory.
func (m *memory) Register(c uverbs.Caller, pd *verbs.PD, start, length, iova uint64, access verbs.Access) (*verbs.MR, error) {
	program := c.(caller)
	var probe [1]byte
	for _, at := range []uint64{start, start + length - 1} {
		if err := c.ReadMemory(at, probe[:]); err != nil {
			return nil, err
		}
	}
	if m.maps {
		mr, err := m.share(program, pd, start, length, iova, access)
		if err == nil || errors.Is(err, supervisor.ErrAgain) {
			return mr, err
		}
		m.run.logf("thread %d: %d bytes at %#x are registered by copies: %v", program.TID, length, start, err)
	}
	return m.RegisterOnDemand(c, pd, start, length, iova, access)
}

// RegisterOnDemand implements uverbs.Memory: by copies. A copy reaches what the program has mapped at that time.
func (m *memory) RegisterOnDemand(c uverbs.Caller, pd *verbs.PD, start, length, iova uint64, access verbs.Access) (*verbs.MR, error) {
	p, err := c.(caller).Process()
	if err != nil {
		return nil, err
	}
	return pd.RegForeignMR(&copied{p, start}, int(length), iova, access)
}

// share registers memory that becomes memory of both.
func (m *memory) share(c caller, pd *verbs.PD, start, length, iova uint64, access verbs.Access) (*verbs.MR, error) {
	begin := time.Now()
	shared, err := c.Map(start, length, m.affords())
	if errors.Is(err, supervisor.ErrAgain) {
		m.spend(begin)
	}
	if err != nil {
		return nil, err
	}
	mr, err := pd.RegFileMR(shared.FD, shared.Offset, int(length), iova, access)
	if err != nil {
		shared.Close()
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mapped == nil {
		m.mapped = map[*verbs.MR]*supervisor.Mapped{}
	}
	m.mapped[mr] = shared
	return mr, nil
}

// Deregister implements uverbs.Memory.
func (m *memory) Deregister(mr *verbs.MR) error {
	if err := mr.Close(); err != nil {
		return err
	}
	m.mu.Lock()
	shared := m.mapped[mr]
	delete(m.mapped, mr)
	m.mu.Unlock()
	if shared != nil {
		shared.Close()
	}
	return nil
}

// copied is memory of a process, from an address on.
type copied struct {
	process *supervisor.Process
	start   uint64
}

// ReadForeign implements verbs.ForeignMemory.
func (m *copied) ReadForeign(b []byte, off uint64) error {
	_, err := m.process.Read(m.start+off, b)
	return err
}

// WriteForeign implements verbs.ForeignMemory.
func (m *copied) WriteForeign(b []byte, off uint64) error {
	_, err := m.process.Write(m.start+off, b)
	return err
}

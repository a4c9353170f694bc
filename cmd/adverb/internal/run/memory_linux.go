//go:build amd64 || arm64

package run

import (
	"github.com/adverb-rdma/adverb/internal/supervisor"
	"github.com/adverb-rdma/adverb/internal/uverbs"
	"github.com/adverb-rdma/adverb/verbs"
)

// memory registers the program's memory to be reached by copies.
type memory struct{}

// Register implements uverbs.Memory.
func (memory) Register(c uverbs.Caller, pd *verbs.PD, start, length, iova uint64, access verbs.Access) (*verbs.MR, error) {
	p, err := c.(caller).Process()
	if err != nil {
		return nil, err
	}
	var probe [1]byte
	for _, at := range []uint64{start, start + length - 1} {
		if err := c.ReadMemory(at, probe[:]); err != nil {
			return nil, err
		}
	}
	return pd.RegForeignMR(&copied{p, start}, int(length), iova, access)
}

// Deregister implements uverbs.Memory.
func (memory) Deregister(mr *verbs.MR) error { return mr.Close() }

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

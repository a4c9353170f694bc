package rdmacm

import (
	"slices"
	"sync"

	"github.com/adverb-rdma/adverb/verbs"
)

// memory is the registered memory that a connection owns.
type memory struct {
	mu     sync.Mutex
	closed bool
	mrs    []*verbs.MR
	prune  int // at this length those that the program has closed are looked for
}

// minPrune bounds how often closed regions are looked for.
const minPrune = 16

// AllocMR allocates n bytes and registers them in PD, as [verbs.PD.AllocMR] does. Close of the
// connection closes the region, so nothing is left of it in a PD that other connections share. The
// program may close it before. After Close the error is verbs.ErrClosed.
func (c *Conn) AllocMR(n int, access verbs.Access) (*verbs.MR, error) {
	return c.memory.add(c.PD().AllocMR(n, access))
}

// RegMR registers buf in PD, as [verbs.PD.RegMR] does, until Close of the connection or of the region.
// After Close of the connection the error is verbs.ErrClosed.
func (c *Conn) RegMR(buf []byte, access verbs.Access) (*verbs.MR, error) {
	return c.memory.add(c.PD().RegMR(buf, access))
}

// add takes note of a region, unless err says that there is none.
func (m *memory) add(mr *verbs.MR, err error) (*verbs.MR, error) {
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	closed := m.closed
	if !closed {
		if len(m.mrs) >= m.prune {
			m.mrs = slices.DeleteFunc(m.mrs, (*verbs.MR).Closed)
			m.prune = max(minPrune, 2*len(m.mrs))
		}
		m.mrs = append(m.mrs, mr)
	}
	m.mu.Unlock()
	if closed {
		mr.Close()
		return nil, &OpError{Op: "register memory for a connection", Err: verbs.Errorf(verbs.ErrClosed, "the connection is closed")}
	}
	return mr, nil
}

// close closes the regions, which the connection's QP uses no more. After an error it may be called again.
func (m *memory) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for n := len(m.mrs); n > 0; n-- {
		if err := m.mrs[n-1].Close(); err != nil {
			return err
		}
		m.mrs = m.mrs[:n-1]
	}
	m.mrs = nil
	return nil
}

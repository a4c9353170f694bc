package cm

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// On RoCE the network chooses paths, so there are no alternate ones to load. Linux drops a LAP.
// This machine answers that it is unsupported, so that the peer need not wait.

// handleLAP does not look at the paths that the LAP names: IBTA CA17-36, CA17-37.
func (m *Machine) handleLAP(_ time.Duration, msg *message) {
	lap, err := wire.DecodeLAP(msg.data)
	if err != nil {
		m.stats.Malformed++
		return
	}
	_, found := m.find(lap.RemoteCommID, lap.LocalCommID, msg.path)
	m.count(msg, found)
	apr := &wire.APR{LocalCommID: lap.RemoteCommID, RemoteCommID: lap.LocalCommID, Status: wire.APRUnsupported}
	switch found {
	case foreign:
		return
	case unknown:
		apr.Status = wire.APRInvalidCommID
	}
	m.send(msg.path, wire.CMAPR, msg.tid, apr)
}

// handleAPR ignores an answer to a LAP, since no LAP is ever sent.
func (m *Machine) handleAPR(_ time.Duration, msg *message) { m.stats.Ignored.add(msg.attr) }

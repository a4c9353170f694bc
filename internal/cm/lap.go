package cm

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// Alternate paths are the business of the network on RoCE. Linux drops a LAP; who asks deserves a no.

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

// handleAPR ignores the answer to a LAP, as none is ever sent.
func (m *Machine) handleAPR(_ time.Duration, msg *message) { m.stats.Ignored.add(msg.attr) }

package connector

import (
	"net/netip"
	"sync"

	"github.com/adverb-rdma/adverb/verbs"
)

// spots remember where in a GID table an address was. Each question of a card's table is a call of the kernel, and a table has
// many entries, so the entry is asked first that had the address before.
type spots struct {
	mu sync.Mutex
	of map[*verbs.Device]map[spotKey]spot // of devices that have a connector
}

type spotKey struct {
	addr netip.Addr
	typ  verbs.GIDType
}

// spot is an entry of a GID table.
type spot struct{ port, index int }

var knownSpots = spots{of: map[*verbs.Device]map[spotKey]spot{}}

// maxSpots bounds what is kept of a device.
const maxSpots = 1024

func (s *spots) open(dev *verbs.Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[dev] = map[spotKey]spot{}
}

func (s *spots) close(dev *verbs.Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, dev)
}

// find returns the port that has an address still where it was, or 0.
func (s *spots) find(dev *verbs.Device, key spotKey) (port int) {
	s.mu.Lock()
	at, ok := s.of[dev][key]
	s.mu.Unlock()
	if !ok {
		return 0
	}
	if e, err := dev.Provider().GID(at.port, at.index); err == nil && e.GID == verbs.GIDFromAddr(key.addr) && e.Type == key.typ {
		return at.port
	}
	return 0
}

func (s *spots) keep(dev *verbs.Device, key spotKey, at spot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of := s.of[dev]; of != nil && len(of) < maxSpots {
		of[key] = at
	}
}

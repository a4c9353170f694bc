//go:build amd64 || arm64

package supervisor

import "sync"

// A gate keeps the supervisor from the memory of a process while the process's pages are replaced: a write between the copy of a page
// and the new mapping would be lost. The ids are those by which others name the process: of its threads, and its own.
type gate struct {
	mu     sync.RWMutex // held by those who are inside
	frozen map[int]bool
	thaws  chan struct{} // closed when nothing is frozen any more
}

// enter waits while an ID is frozen. leave follows.
func (g *gate) enter(id int) {
	g.mu.RLock()
	for g.frozen[id] {
		thaws := g.thaws
		g.mu.RUnlock()
		<-thaws
		g.mu.RLock()
	}
}

func (g *gate) leave() { g.mu.RUnlock() }

// freeze keeps others out from when it returns on. One caller may freeze at a time.
func (g *gate) freeze(ids map[int]bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.frozen, g.thaws = ids, make(chan struct{})
}

func (g *gate) thaw() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.frozen != nil {
		g.frozen = nil
		close(g.thaws)
	}
}

package udp

import (
	"slices"
	"sync"
	"time"
)

// Watch has changed called whenever an interface of this host or an address may have changed, on a goroutine that all
// watches of the process share. One look too many costs little, so the call names no change. Where the system does
// not report changes, changed is called every two seconds. changed must not block. stop ends the watch. A call may be
// under way when stop returns, and changed must not call stop.
func Watch(changed func()) (stop func()) { return processWatch.add(changed) }

// processWatch is the process's one watch of the host, while somebody needs it.
var processWatch hostWatch

// hostWatch calls the watchers at changes of the host's interfaces and addresses.
type hostWatch struct {
	turns sync.Mutex // held while the watch begins or ends, and taken before mu

	mu     sync.Mutex
	subs   []*subscriber
	ending func() // ends the watch; nil while there is none
}

type subscriber struct{ changed func() }

// add adds a watcher, and begins the watch for the first.
func (w *hostWatch) add(changed func()) (stop func()) {
	w.turns.Lock()
	defer w.turns.Unlock()
	s := &subscriber{changed}
	w.mu.Lock()
	w.subs = append(slices.Clip(w.subs), s)
	w.mu.Unlock()
	if w.ending == nil {
		w.ending = w.begin()
	}
	return sync.OnceFunc(func() { w.remove(s) })
}

// remove undoes add, and ends the watch after the last.
func (w *hostWatch) remove(s *subscriber) {
	w.turns.Lock()
	defer w.turns.Unlock()
	w.mu.Lock()
	w.subs = slices.DeleteFunc(slices.Clone(w.subs), func(other *subscriber) bool { return other == s })
	last := len(w.subs) == 0
	w.mu.Unlock()
	if last {
		w.ending()
		w.ending = nil
	}
}

// begin begins the watch, and returns the function that ends it.
func (w *hostWatch) begin() (end func()) {
	done := make(chan struct{})
	hang, follow := reports()
	var wg sync.WaitGroup
	wg.Go(func() {
		if follow == nil || !follow(w.tell, done) {
			w.poll(pollInterval, done)
		}
	})
	return func() {
		close(done)
		hang()
		wg.Wait()
	}
}

// tell tells all, without the lock: they may just be adding another, with locks of their own.
func (w *hostWatch) tell() {
	w.mu.Lock()
	subs := w.subs
	w.mu.Unlock()
	for _, s := range subs {
		s.changed()
	}
}

// poll tells all watchers that it is time to look, at once and every interval, until done is closed. So a change
// before the first look of a poll is reported, too.
func (w *hostWatch) poll(interval time.Duration, done <-chan struct{}) {
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		w.tell()
		select {
		case <-done:
			return
		case <-t.C:
		}
	}
}

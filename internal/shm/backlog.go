package shm

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Records of a lane that ends in this process need no bell while a thread attends: the thread works the records off
// itself, before it goes on. So a message from one device of a process to another wakes no thread. Linux does the same with
// packets of its loopback interface: the sender's thread leaves them in a backlog, and receives them on its way out.
//
// An attendant works off the records that it finds, whoever has put them there, until there are none. So a record that is put
// into a backlog while somebody attends is worked off.

// backlog has the inboxes of this process with records for attendants.
var backlog struct {
	attending atomic.Int32 // attendants. It changes under the lock

	mu    sync.Mutex
	boxes []*Inbox
}

// attendMost is how many inboxes an attendant works off at most. A thread that waits for an answer waits no longer than that for the
// messages of others.
const attendMost = 256

// Attend calls f, and then works off the records in lanes that end in this process, by the functions given to OnRecords. f
// returns without locks that these functions take.
func Attend(f func()) {
	l := &backlog
	l.mu.Lock()
	l.attending.Add(1)
	l.mu.Unlock()
	defer leave()
	f()
	for range attendMost {
		l.mu.Lock()
		if len(l.boxes) == 0 {
			l.mu.Unlock()
			return
		}
		b := l.boxes[0]
		l.boxes = slices.Delete(l.boxes, 0, 1)
		b.left = false
		l.mu.Unlock()
		b.worker.Load().work()
	}
}

// leave ends an attendance. Where nobody attends any more to inboxes that are left, their goroutines do.
func leave() {
	l := &backlog
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.attending.Add(-1) > 0 {
		return
	}
	for i, b := range l.boxes {
		b.left, l.boxes[i] = false, nil
		b.worker.Load().wake()
	}
	l.boxes = l.boxes[:0]
}

// OnRecords sets the function by which an attendant works off the records in the inbox, and the one that wakes the goroutine that
// does so otherwise. Both are called by any thread, and wake with a lock held.
func (b *Inbox) OnRecords(work, wake func()) { b.worker.Store(&worker{work, wake}) }

// worker is who works off the records in an inbox.
type worker struct{ work, wake func() }

// Leave leaves records, or other work for the inbox's function, to an attendant. It reports false if nobody attends, or b is nil.
func (b *Inbox) Leave() bool {
	l := &backlog
	if l.attending.Load() == 0 || b == nil || b.worker.Load() == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.attending.Load() == 0 {
		return false
	}
	if !b.left {
		b.left = true
		l.boxes = append(l.boxes, b)
	}
	return true
}

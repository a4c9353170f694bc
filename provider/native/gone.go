//go:build linux && (amd64 || arm64)

package native

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/adverb-rdma/adverb/verbs"
)

// goneError is the error of a device that has failed, or that the kernel has taken away. It is EIO, as in C.
type goneError struct{ cause error }

func (e *goneError) Error() string {
	return fmt.Sprintf("the device has failed or is gone (%v): close its objects and itself, and open it again", e.cause)
}

func (e *goneError) Unwrap() []error { return []error{syscall.EIO, e.cause} }

// errFatal is the cause where the driver says so.
var errFatal = errors.New(verbs.EventDeviceFatal.String())

// fail notes that the device works no more: the program gets one event, and who waits for completions is woken, since none will
// come. The first cause counts.
func (d *device) fail(cause error) {
	e := &goneError{cause}
	if !d.gone.CompareAndSwap(nil, e) {
		return
	}
	ev := verbs.AsyncEvent{Type: verbs.EventDeviceFatal}
	if cause != errFatal {
		ev.Cause = e
	}
	d.events.Add(ev)
	d.cqs.each(func(c *cq) { c.user.Notified() })
}

// usable returns an error once the device is gone. A driver takes work requests all the same, and never completes them.
func (d *device) usable() error {
	if e := d.gone.Load(); e != nil {
		return e
	}
	return nil
}

// destroyed is the error of a call that destroys an object. The kernel destroys all objects of a device that goes, and refuses
// the call for each. libibverbs then keeps its memory of the object. The caller holds no lock that the device's events take.
func (d *device) destroyed(err error) error {
	if errors.Is(err, syscall.EIO) && d.usable() == nil { // the news may be on its way
		if end := d.lib.AsyncEvents(d.c, d.happened); !errors.Is(end, syscall.EAGAIN) {
			d.fail(end)
		}
	}
	if d.usable() != nil {
		return nil
	}
	return err
}

// leftMemory is memory of regions that could not be closed, since the device was gone. It may write there until it is closed.
type leftMemory struct {
	mu  sync.Mutex
	all []*memory
}

func (l *leftMemory) add(m *memory) {
	l.mu.Lock()
	l.all = append(l.all, m)
	l.mu.Unlock()
}

// free lets go of the memory behind the device.
func (l *leftMemory) free() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.all {
		m.free()
	}
	l.all = nil
}

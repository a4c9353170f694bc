package connector

import (
	"os"
	"runtime"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/rdmatest"
)

// The kernel tells each ID that its device is gone. The watcher hears of it once.
func TestKernelGoneOnce(t *testing.T) {
	gone := 0
	c := &kernelConnector{dev: rdmatest.New(t).Device(), ids: map[uint64]*kernelID{}, watcher: Watcher{Gone: func(error) { gone++ }}}
	for range 3 {
		id := c.name(1, func(*uapi.CMEventResp) {})
		c.dispatch(&uapi.CMEventResp{UID: id.name, Event: uapi.CMEventDeviceRemoval})
	}
	if gone != 1 {
		t.Errorf("told %d times that the device is gone, want once", gone)
	}
}

// closingRead is a file that is closed as soon as somebody has found an event in it.
type closingRead struct {
	syscall.RawConn
	file *os.File
}

func (c closingRead) Read(f func(uintptr) bool) error {
	return c.RawConn.Read(func(fd uintptr) bool {
		go c.file.Close() // which waits for Read
		for c.Control(func(uintptr) {}) == nil {
			runtime.Gosched()
		}
		return f(fd)
	})
}

// A connector that is closed as it takes an event does not take its device for gone.
func TestKernelClosedInEvent(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	raw, err := r.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	c := &kernelConnector{file: r, raw: closingRead{raw, r}, command: command, ended: make(chan struct{}), watcher: Watcher{Gone: func(err error) { t.Errorf("told that the device is gone: %v", err) }}}
	c.run()
	<-c.ended
}

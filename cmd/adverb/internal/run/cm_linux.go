//go:build amd64 || arm64

package run

import (
	"bytes"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/supervisor"
	"github.com/adverb-rdma/adverb/internal/ucma"
)

// The numbers of the misc device rdma_cm. The minor number is of those that Linux chooses at run time.
const (
	miscMajor = 10
	cmMinor   = 58
	cmPath    = "/dev/infiniband/rdma_cm"
)

// cmDevice is /dev/infiniband/rdma_cm of a run.
type cmDevice struct{ run *served }

// Open implements supervisor.Device. The program polls a pipe. A writing end of the pipe tells when the program has closed
// its last copy.
func (d cmDevice) Open(c *supervisor.Call, _ int) (supervisor.Opened, error) {
	m, err := d.run.cm.get(c)
	if err != nil {
		return supervisor.Opened{}, err
	}
	f, poll, err := m.Open()
	if err != nil {
		return supervisor.Opened{}, err
	}
	defer poll.Close()
	o := supervisor.Opened{}
	raw, err := poll.SyscallConn()
	if err != nil {
		f.Close()
		return o, err
	}
	_ = raw.Control(func(fd uintptr) {
		if o.FD, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return
		}
		if o.Watch, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != nil {
			unix.Close(o.FD)
		}
	})
	if err != nil {
		f.Close()
		return supervisor.Opened{}, err
	}
	o.File = &cmFile{run: d.run, f: f, watch: o.Watch, released: make(chan struct{})}
	return o, nil
}

// cmFile is an open rdma_cm.
type cmFile struct {
	run      *served
	f        *ucma.File
	watch    int
	released chan struct{} // closed with the last descriptor
}

// cmCaller is the program in a call of rdma_cm.
type cmCaller struct{ caller }

// WriteMemory implements ucma.Caller. An event that the program has got must not be lost to a signal.
func (c cmCaller) WriteMemory(addr uint64, b []byte) error {
	if !c.Claim() {
		return unix.EINTR
	}
	return c.caller.WriteMemory(addr, b)
}

// File implements ucma.Caller.
func (c cmCaller) File(fd uint32) (*ucma.File, error) {
	f, err := c.Call.File(fd)
	if err != nil {
		return nil, err
	}
	cm, ok := f.(*cmFile)
	if !ok {
		return nil, unix.EINVAL
	}
	return cm.f, nil
}

// Read implements supervisor.File: rdma_cm has nothing to read.
func (f *cmFile) Read(c *supervisor.Call, _ uint64) { c.Fail(unix.EINVAL) }

// Ioctl implements supervisor.File: rdma_cm has no ioctl.
func (f *cmFile) Ioctl(c *supervisor.Call, _ uint32, _ uint64) { c.Fail(unix.ENOTTY) }

// Write implements supervisor.File. A command that waits for an event is answered when there is one.
func (f *cmFile) Write(c *supervisor.Call, b []byte) {
	b = bytes.Clone(b)
	c.Go(func() {
		err := f.f.Do(cmCaller{caller{c}}, b)
		if errors.Is(err, ucma.ErrWouldBlock) {
			if c.Nonblocking() {
				c.Fail(unix.EAGAIN)
				return
			}
			gone := make(chan struct{})
			c.Wait(func() { close(gone) })
			err = f.wait(c, b, gone)
		}
		if err != nil {
			e := ucma.Errno(err)
			f.run.logf("thread %d: rdma_cm command %d: %v: %v", c.TID, b[0], e, err)
			c.Fail(e)
			return
		}
		c.Return(int64(len(b)))
	})
}

// wait carries out a command once there is an event, unless the call goes away before. A call of the kernel's keeps its
// file open, so it goes on waiting where another thread has closed the last descriptor.
func (f *cmFile) wait(c *supervisor.Call, b []byte, gone <-chan struct{}) error {
	for {
		select {
		case <-f.f.Readable():
		case <-gone:
			return unix.EINTR
		}
		select {
		case <-f.released:
			<-gone
			return unix.EINTR
		default:
		}
		if err := f.f.Do(cmCaller{caller{c}}, b); !errors.Is(err, ucma.ErrWouldBlock) {
			return err
		}
	}
}

// Released implements supervisor.File.
func (f *cmFile) Released() {
	close(f.released)
	f.f.Close()
	unix.Close(f.watch)
}

var _ ucma.Caller = cmCaller{}

//go:build amd64 || arm64

package run

import (
	"bytes"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/shm"
	"github.com/adverb-rdma/adverb/internal/supervisor"
	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/internal/uverbs"
	"github.com/adverb-rdma/adverb/verbs"
)

// verbsDevice is the device behind a node of a run.
type verbsDevice struct {
	run  *served
	name string
}

// Open implements supervisor.Device.
func (d verbsDevice) Open(c *supervisor.Call, _ int) (supervisor.Opened, error) {
	dev, err := verbs.Open(d.name)
	if err != nil {
		return supervisor.Opened{}, err
	}
	forget, err := openedBy(c, dev)
	if err != nil {
		dev.Close()
		return supervisor.Opened{}, err
	}
	ctx, err := uverbs.Open(dev, &d.run.memory)
	if err != nil {
		forget()
		dev.Close()
		return supervisor.Opened{}, err
	}
	fd, err := unix.FcntlInt(ctx.File().Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		forget()
		ctx.Close()
		return supervisor.Opened{}, err
	}
	return supervisor.Opened{File: &verbsFile{d.run, ctx, forget}, FD: fd, Watch: -1}, nil
}

// verbsFile is an open uverbs device.
type verbsFile struct {
	run    *served
	ctx    *uverbs.Context
	forget func() // whose it is
}

// caller is the program in a call.
type caller struct{ *supervisor.Call }

// ReadMemory implements uverbs.Caller.
func (c caller) ReadMemory(addr uint64, b []byte) error { _, err := c.Read(addr, b); return err }

// WriteMemory implements uverbs.Caller.
func (c caller) WriteMemory(addr uint64, b []byte) error { _, err := c.Write(addr, b); return err }

// Inject implements uverbs.Caller.
func (c caller) Inject(f *os.File, cloexec bool) (int, error) {
	raw, err := f.SyscallConn() // Fd would make it blocking
	if err != nil {
		return -1, err
	}
	n := -1
	if cerr := raw.Control(func(fd uintptr) { n, err = c.Call.Inject(int(fd), cloexec, -1, false) }); cerr != nil {
		return -1, cerr
	}
	return n, err
}

// Read implements supervisor.File: uverbs has nothing to read.
func (f *verbsFile) Read(c *supervisor.Call, _ uint64) { c.Fail(unix.EINVAL) }

// Write implements supervisor.File. A doorbell is carried out at once, by the thread that was told of it: like a driver's
// system call, so that the program goes on when its work is done, and no other thread has to be woken. The thread does the
// peer's part too, if the peer is in this process.
func (f *verbsFile) Write(c *supervisor.Call, b []byte) {
	if qp, ok := uapi.ParseDoorbell(b); ok {
		var err error
		shm.Attend(func() { err = f.ctx.Doorbell(qp) })
		f.answer(c, uapi.CmdPostSend, err, len(b))
		return
	}
	cmd, err := uapi.ParseWrite(bytes.Clone(b))
	if err != nil {
		c.Fail(unix.EINVAL)
		return
	}
	n := len(b)
	c.Go(func() { f.answer(c, cmd.Number, f.ctx.Do(caller{c}, cmd), n) })
}

// answer answers a command by the number of bytes that were written, or by its error.
func (f *verbsFile) answer(c *supervisor.Call, number uapi.CommandNumber, err error, n int) {
	switch {
	case errors.Is(err, supervisor.ErrAgain): // the call has its answer
		return
	case err != nil:
		e := uverbs.Errno(err)
		f.run.logf("thread %d: uverbs command %#x: %v: %v", c.TID, uint32(number), e, err)
		c.Fail(e)
		return
	}
	c.Return(int64(n))
}

// Ioctl implements supervisor.File: INVOKE_WRITE carries a command, and ADVISE_MR has no other form. For all other methods
// programs have another way.
func (f *verbsFile) Ioctl(c *supervisor.Call, request uint32, arg uint64) {
	if request != uapi.IoctlVerbs {
		c.Fail(unix.ENOTTY)
		return
	}
	c.Go(func() {
		b, program := make([]byte, uapi.IoctlHeaderSize), caller{c}
		if err := program.ReadMemory(arg, b); err != nil {
			c.Fail(unix.EFAULT)
			return
		}
		n, err := uapi.ParseIoctlHeader(b)
		if err != nil {
			c.Fail(unix.EINVAL)
			return
		}
		b = make([]byte, n)
		if err := program.ReadMemory(arg, b); err != nil {
			c.Fail(unix.EFAULT)
			return
		}
		call, err := uapi.ParseIoctl(b)
		switch {
		case err != nil:
			c.Fail(unix.EINVAL)
			return
		case call.Object == uapi.ObjectMR && call.Method == uapi.MethodAdviseMR:
			f.advise(c, &call)
			return
		case call.Object != uapi.ObjectDevice || call.Method != uapi.MethodInvokeWrite:
			c.Fail(unix.EPROTONOSUPPORT)
			return
		}
		cmd, err := call.Command(program.ReadMemory)
		if err != nil {
			c.Fail(unix.EFAULT)
			return
		}
		f.answer(c, cmd.Number, f.ctx.Do(program, cmd), 0)
	})
}

// advise answers the ioctl ADVISE_MR.
func (f *verbsFile) advise(c *supervisor.Call, call *uapi.Ioctl) {
	a, err := call.AdviseMR(caller{c}.ReadMemory)
	if err == nil {
		err = f.ctx.Advise(a)
	}
	if err != nil {
		e := uverbs.Errno(err)
		f.run.logf("thread %d: ADVISE_MR: %v: %v", c.TID, e, err)
		c.Fail(e)
		return
	}
	c.Return(0)
}

// Released implements supervisor.File.
func (f *verbsFile) Released() {
	if err := f.ctx.Close(); err != nil {
		f.run.logf("close a device: %v", err)
	}
	f.forget()
}

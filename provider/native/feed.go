//go:build linux && (amd64 || arm64)

package native

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/ibv"
	"github.com/adverb-rdma/adverb/verbs"
)

// feed brings the events of a device from the kernel: completion events of all CQs by one channel, and asynchronous events. Two
// goroutines wait in Go's network poller, and no thread does.
type feed struct {
	d       *device
	channel ibv.Ref[ibv.CompChannel]
	files   [2]*os.File
	wait    sync.WaitGroup
	closing atomic.Bool
}

func (d *device) newFeed() (*feed, error) {
	ch, err := d.lib.CreateCompChannel(d.c)
	if err != nil {
		return nil, err
	}
	f := &feed{d: d, channel: ch}
	for i, w := range []struct {
		fd    int32
		drain func() error
	}{
		{ch.P().FD, func() error { return d.lib.CQEvents(ch, d.completed) }},
		{d.c.P().AsyncFD, func() error { return d.lib.AsyncEvents(d.c, d.happened) }},
	} {
		if f.files[i], err = f.watch(int(w.fd), w.drain); err != nil {
			return nil, errors.Join(err, f.close())
		}
	}
	return f, nil
}

// watch has drain called whenever a descriptor may be read. Its errors say that nothing is left: EAGAIN, or the end. An end
// before close is that of the device: the kernel has no more events of it, and says EIO.
func (f *feed) watch(fd int, drain func() error) (*os.File, error) {
	if err := syscall.SetNonblock(fd, true); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	// The library closes its descriptor, and the poller needs one that stays: a second one.
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	file := os.NewFile(uintptr(own), "rdma events")
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	f.wait.Go(func() {
		var end error
		err := conn.Read(func(uintptr) bool { // which ends when the file is closed
			end = drain()
			return !errors.Is(end, syscall.EAGAIN)
		})
		if f.closing.Load() {
			return
		}
		if err != nil { // the descriptor is in error, which the poller does not wait for; the call knows why
			if end = drain(); errors.Is(end, syscall.EAGAIN) {
				end = err
			}
		}
		f.d.fail(end)
	})
	return file, nil
}

// close ends the goroutines, and then the channel, unless they have ended before.
func (f *feed) close() error {
	f.closing.Store(true)
	for _, file := range f.files {
		if file != nil {
			_ = file.Close() // it was opened for reading alone
		}
	}
	f.wait.Wait()
	if f.channel == (ibv.Ref[ibv.CompChannel]{}) {
		return nil
	}
	if err := f.d.lib.DestroyCompChannel(f.channel); err != nil {
		if f.d.usable() == nil {
			return err
		}
		_ = syscall.Close(int(f.channel.P().FD)) // libibverbs keeps the channel of CQs that it could not destroy
	}
	f.channel = ibv.Ref[ibv.CompChannel]{}
	return nil
}

// completed tells a CQ that an event has come which it was armed for.
func (d *device) completed(r ibv.Ref[ibv.CQ]) {
	if c := d.cqs.get(r); c != nil {
		c.user.Notified()
	}
}

// happened takes an asynchronous event.
func (d *device) happened(e ibv.Event) {
	ev := verbs.AsyncEvent{Type: verbs.EventType(e.Type)}
	switch ev.Type {
	case verbs.EventCQErr:
		c := d.cqs.get(e.CQ())
		if c == nil {
			return // it is being closed
		}
		ev.CQ = c.user
	case verbs.EventSRQErr, verbs.EventSRQLimitReached:
		s := d.srqs.get(e.SRQ())
		if s == nil {
			return
		}
		ev.SRQ = s.user
	case verbs.EventQPFatal, verbs.EventQPReqErr, verbs.EventQPAccessErr, verbs.EventCommEst, verbs.EventSQDrained,
		verbs.EventPathMig, verbs.EventPathMigErr, verbs.EventQPLastWQEReached:
		q := d.qps.get(e.QP())
		if q == nil {
			return
		}
		ev.QP = q.user
		if q.happened(ev.Type) {
			return // somebody has asked for it otherwise
		}
	case verbs.EventDeviceFatal:
		d.fail(errFatal)
		return
	case verbs.EventWQFatal:
	default:
		ev.Port = e.Port()
	}
	d.events.Add(ev)
}

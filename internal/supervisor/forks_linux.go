//go:build amd64 || arm64

package supervisor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// A child of fork(2) has copies of its parent's private memory, and replaced pages would be memory of both. So the filter notifies
// fork, clone without CLONE_VM, and clone3, whose flags it cannot see. If the process has replaced pages, the thread is traced
// while it forks. Both it and the child are stopped before they go on, and the child makes private mappings with the same contents.
// As with fork itself, the copy is of one moment only as far as the forking thread can tell.
//
// A thread that a debugger traces cannot be traced by the supervisor too. Its child shares the replaced pages.

// fork answers a system call that may make a process.
func (s *Supervisor) fork(c *Call, o op) {
	if !s.replaced.begun.Load() || s.replaced.forking.Load() == int64(c.TID) {
		c.Continue()
		return
	}
	flags := uint64(0)
	switch o {
	case opClone:
		flags = c.Args[0]
	case opClone3:
		var b [8]byte
		if _, err := c.Read(c.Args[0], b[:]); err == nil {
			flags = binary.LittleEndian.Uint64(b[:])
		}
	}
	if flags&unix.CLONE_VM != 0 {
		c.Continue()
		return
	}
	c.Go(func() { s.replaced.fork(c) })
}

func (r *replaced) fork(c *Call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if list, err := r.areas(c.TID); err != nil || len(list) == 0 {
		c.Continue()
		return
	}
	err := trace(func(t *tracer) error {
		if err := t.seize(c.TID, unix.PTRACE_O_TRACEFORK|unix.PTRACE_O_TRACEVFORK|unix.PTRACE_O_TRACECLONE); err != nil {
			return err
		}
		r.forking.Store(int64(c.TID))
		defer r.forking.Store(0)
		c.Continue()
		child, err := t.child(c.TID)
		r.forking.Store(0) // it has stopped
		if child == 0 || err != nil {
			return err
		}
		if err := r.separate(t, child); err != nil {
			return fmt.Errorf("copy memory to process %d: %w", child, err)
		}
		return nil
	})
	if err != nil && err != errThread {
		c.s.logf("fork of thread %d: %v: its child shares registered memory", c.TID, err)
	}
	c.Continue() // if nobody has
}

// forkPatience is after which time a thread that has not forked is stopped to see why.
const forkPatience = 200 * time.Millisecond

// child waits until a thread has forked, and returns the child, which is stopped, or 0 if there is none: fork failed, or a signal
// came first.
func (t *tracer) child(tid int) (child int, err error) {
	if err := t.await(tid, forkPatience); errors.Is(err, errBusy) {
		ptrace(unix.PTRACE_INTERRUPT, tid, 0, 0)
		err = t.await(tid, time.Hour) // fork of much memory may take long, but it ends
		if err != nil {
			return 0, err
		}
	} else if err != nil {
		return 0, err
	}
	switch t.threads[tid].status >> 16 {
	case unix.PTRACE_EVENT_FORK, unix.PTRACE_EVENT_VFORK, unix.PTRACE_EVENT_CLONE:
	default:
		return 0, nil
	}
	id, err := unix.PtraceGetEventMsg(tid)
	if err != nil {
		return 0, err
	}
	child = int(id)
	t.threads[child] = new(traced) // the kernel has seized it
	return child, t.await(child, stepPatience)
}

// separate gives a new process private memory in the place of that which it shares with its parent.
func (r *replaced) separate(t *tracer, child int) error {
	list, err := r.areas(child)
	if err != nil || len(list) == 0 {
		return err
	}
	thread, err := t.calling(child)
	if err != nil {
		return err
	}
	for i := range list {
		if err = r.files[list[i].file].give(r.s, thread, &list[i]); err != nil {
			break
		}
	}
	return errors.Join(err, thread.finish(false))
}

// areas are the replaced areas of a thread's process.
func (r *replaced) areas(tid int) (list []area, err error) {
	all, err := allAreas(tid)
	for i := range all {
		if r.files[all[i].file] != nil {
			list = append(list, all[i])
		}
	}
	return list, err
}

// give has a stopped process have a copy of an area.
func (f *memoryFile) give(s *Supervisor, c *calling, a *area) error {
	n, rights := a.to-a.from, a.protection()
	const readWrite = unix.PROT_READ | unix.PROT_WRITE
	nowhere := ^uint64(0)
	if _, err := c.call(unix.SYS_MMAP, a.from, n, readWrite, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_FIXED|unix.MAP_NORESERVE, nowhere, 0); err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	buf := copyPieces.Get().(*[copyPiece]byte)
	defer copyPieces.Put(buf)
	for at, end := int64(a.offset), int64(a.offset+n); ; {
		from, err := unix.Seek(f.fd, at, unix.SEEK_DATA)
		if err != nil || from >= end {
			break
		}
		to, err := unix.Seek(f.fd, from, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		for at, to = from, min(to, end); at < to; {
			b := buf[:min(to-at, copyPiece)]
			if k, err := unix.Pread(f.fd, b, at); err != nil || k < len(b) {
				return fmt.Errorf("read: %d bytes, %w", k, err)
			}
			if _, err := s.mem.write(c.tid, a.from+uint64(at)-a.offset, b); err != nil {
				return fmt.Errorf("write: %w", err)
			}
			at += int64(len(b))
		}
	}
	if rights != readWrite {
		if _, err := c.call(unix.SYS_MPROTECT, a.from, n, rights); err != nil {
			return fmt.Errorf("mprotect: %w", err)
		}
	}
	return nil
}

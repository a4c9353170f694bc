//go:build amd64 || arm64

package supervisor

import (
	"strconv"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// memory reads and writes the memory of processes: by process_vm_readv and process_vm_writev, or by /proc/PID/mem where a
// filter forbids these, as some container runtimes' do.
type memory struct {
	gate
	byFile atomic.Bool
}

// forbidden are the errors of system calls that a filter denies.
func forbidden(err error) bool { return err == unix.EPERM || err == unix.ENOSYS }

func (m *memory) read(pid int, addr uint64, b []byte) (int, error) {
	return m.move(pid, addr, b, false)
}
func (m *memory) write(pid int, addr uint64, b []byte) (int, error) {
	m.enter(pid)
	defer m.leave()
	return m.move(pid, addr, b, true)
}

func (m *memory) move(pid int, addr uint64, b []byte, write bool) (n int, err error) {
	if len(b) == 0 {
		return 0, nil
	}
	if addr+uint64(len(b)) < addr {
		return 0, unix.EFAULT
	}
	if !m.byFile.Load() {
		n, err = byCall(pid, addr, b, write)
		if !forbidden(err) {
			return whole(n, len(b), err)
		}
		n, err = byFile(pid, addr, b, write)
		if err == nil {
			m.byFile.Store(true)
		}
		return whole(n, len(b), err)
	}
	n, err = byFile(pid, addr, b, write)
	return whole(n, len(b), err)
}

// whole makes an error of a part.
func whole(n, all int, err error) (int, error) {
	n = max(0, n)
	if err == nil && n < all {
		err = unix.EFAULT
	}
	return n, err
}

func byCall(pid int, addr uint64, b []byte, write bool) (int, error) {
	local := unix.Iovec{Base: &b[0], Len: uint64(len(b))}
	remote := unix.RemoteIovec{Base: uintptr(addr), Len: len(b)}
	number := uintptr(unix.SYS_PROCESS_VM_READV)
	if write {
		number = unix.SYS_PROCESS_VM_WRITEV
	}
	n, _, e := unix.Syscall6(number, uintptr(pid), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

// byFile uses /proc/PID/mem. That file ignores the protection of pages, so the protection is looked up first.
func byFile(pid int, addr uint64, b []byte, write bool) (int, error) {
	n := permitted(pid, addr, len(b), write)
	if n == 0 {
		return 0, unix.EFAULT
	}
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/mem", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if write {
		n, err = unix.Pwrite(fd, b[:n], int64(addr))
	} else {
		n, err = unix.Pread(fd, b[:n], int64(addr))
	}
	if err == unix.EIO {
		err = unix.EFAULT
	}
	return n, err
}

// permitted is how many of n bytes from addr on the process could read or write itself.
func permitted(pid int, addr uint64, n int, write bool) int {
	list, err := areas(pid, addr, addr+uint64(n))
	if err != nil {
		return 0
	}
	return permittedIn(list, addr, write)
}

// permittedIn is how many bytes from addr on the areas let the process read or write itself.
func permittedIn(list []area, addr uint64, write bool) int {
	at := addr
	for i := range list {
		if a := &list[i]; a.from != at || write && a.rights[1] != 'w' || !write && a.rights[0] != 'r' {
			break
		}
		at = list[i].to
	}
	return int(at - addr)
}

//go:build amd64 || arm64

package supervisor

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// targetHostile makes system calls with arguments that make no sense, so many, by a seed.
func targetHostile(args []string) {
	seed, _ := strconv.ParseUint(args[0], 10, 64)
	n, _ := strconv.Atoi(args[1])
	r := rand.New(rand.NewPCG(seed, 1))
	fds := []int{open(toyNode, unix.O_RDWR), open(toyMem, unix.O_RDWR), open(toyClass, unix.O_RDONLY)}
	page, err := unix.Mmap(-1, 0, 3*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	want("mmap", err, nil)
	want("mprotect", unix.Mprotect(page[8192:], unix.PROT_NONE), nil)
	want("mprotect", unix.Mprotect(page[4096:8192], unix.PROT_READ), nil)
	at := uintptr(unsafe.Pointer(&page[0]))
	parts := []string{"/", "sys", "class", "infiniband", "toy0", "device", "..", ".", "//", "node_type", "dev", "proc/self/fd/1023", "loop", "none", "\xff", "toymem", "subsystem"}
	number := func() uintptr {
		switch r.IntN(8) {
		case 0:
			return uintptr(fds[r.IntN(len(fds))])
		case 1:
			return at + uintptr(r.IntN(3*4096))
		case 2:
			return at
		case 3:
			return uintptr(rangeTop - r.IntN(2*rangeSize))
		case 4:
			return uintptr(r.Uint64())
		case 5:
			return uintptr(r.IntN(5000))
		case 6:
			return ^uintptr(99) // AT_FDCWD
		}
		return uintptr(uint32(1) << r.IntN(32))
	}
	for range n {
		path, below := "", false
		for range r.IntN(7) {
			path += parts[r.IntN(len(parts))] + "/"[:r.IntN(2)]
		}
		if r.IntN(2) == 0 {
			path = "/" + path
		}
		if r.IntN(2) == 0 {
			path, below = toyClass+"/"+strings.ReplaceAll(path, "..", "."), true
		}
		// At the begin of the page, or so that it ends where the process may not read.
		copy(page[:4095], path)
		page[len(path)] = 0
		call := calls[r.IntN(len(calls))]
		a := [6]uintptr{number(), number(), number(), number(), number(), number()}
		if !call.op.onDescriptor() && r.IntN(4) != 0 {
			a[0] = at
			if n := call.op; n == opOpenat || n == opOpenat2 || n == opFstatat || n == opStatx || n == opFaccessat || n == opFaccessat2 || n == opReadlinkat {
				a[0], a[1] = uintptr(fds[2]), at
			}
		}
		if call.op.onDescriptor() && r.IntN(4) != 0 {
			a[0] = uintptr(fds[r.IntN(2)])
		}
		// What is not virtual is opened to read, and nothing is made.
		switch {
		case call.op == opOpen && !(below && a[0] == at):
			a[1] = unix.O_RDONLY | unix.O_NONBLOCK
		case call.op == opOpenat && !(below && a[1] == at):
			a[2] = unix.O_RDONLY | unix.O_NONBLOCK
		case call.op == opCreat && !(below && a[0] == at), call.op == opOpenat2 && !(below && a[1] == at):
			continue
		}
		if call.op == opIoctl && uint32(a[1]) == toyWait || a[0] < 3 || call.op == opDup3 && a[1] < 3 || call.op == opDup2 && a[1] < 3 {
			continue // would wait for ever, or take the words of this program
		}
		if call.op == opRead || call.op == opReadv {
			if int(a[0]) != fds[0] {
				continue // may wait for ever
			}
			want("set O_NONBLOCK", unix.SetNonblock(fds[0], true), nil)
		}
		switch r, _, e := unix.Syscall6(uintptr(call.number), a[0], a[1], a[2], a[3], a[4], a[5]); {
		case e == errRestart:
			die("seed %d: system call %d %x gave ERESTARTSYS", seed, call.number, a)
		case e == 0 && (call.op == opDup || call.op == opOpen || call.op == opOpenat || call.op == opOpenat2 || call.op == opCreat || call.op == opFcntl) && int(r) > 2 && int(r) != fds[0] && int(r) != fds[1] && int(r) != fds[2]:
			unix.Close(int(r))
		}
	}
	// The supervisor answers as before.
	var st unix.Stat_t
	want("stat", unix.Stat(toyNode, &st), nil)
	is("rdev", st.Rdev, unix.Mkdev(toyMajor, 192))
	fmt.Println("hostile", n)
}

// targetCost measures calls, in nanoseconds: the median of rounds.
func targetCost([]string) {
	fd := open(toyNode, unix.O_RDWR)
	null := open("/dev/null", unix.O_RDWR)
	b := make([]byte, 8)
	for _, m := range []struct {
		name string
		f    func()
	}{
		{"getppid", func() { unix.Getppid() }},
		{"write to /dev/null", func() { unix.Write(null, b) }},
		{"ioctl of a device", func() { ioctl(fd, toyCount, 0) }},
		{"write of 8 bytes to a device", func() { unix.Write(fd, b); unix.Read(fd, b) }},
		{"ioctl with 8 bytes in and out", func() { ioctl(fd, toyTwice, uintptr(unsafe.Pointer(&b[0]))) }},
		{"access of another path", func() { unix.Access("/dev/null", 0) }},
		{"access of a virtual path", func() { unix.Access(toyAttr, 0) }},
		{"open and close of a device", func() { unix.Close(open(toyNode, unix.O_RDWR)) }},
	} {
		const rounds, each = 21, 100
		var all [rounds]time.Duration
		for i := range all {
			begin := time.Now()
			for range each {
				m.f()
			}
			all[i] = time.Since(begin) / each
		}
		median := all[0]
		for _, d := range all {
			below, above := 0, 0
			for _, e := range all {
				if e < d {
					below++
				}
				if e > d {
					above++
				}
			}
			if below <= rounds/2 && above <= rounds/2 {
				median = d
			}
		}
		fmt.Fprintf(os.Stdout, "%-32s %v\n", m.name, median)
	}
}

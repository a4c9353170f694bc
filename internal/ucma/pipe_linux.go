package ucma

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// pipe is the file that a program polls. The program has the reading end.
type pipe struct {
	w int // -1 once closed
	n int // bytes in it
}

// newPipe returns a pipe and its reading end, which is the caller's.
func newPipe() (*pipe, *os.File, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("open rdma_cm: pipe2: %w", err)
	}
	_ = unix.SetNonblock(p[1], true) // this end alone: the other's mode is the program's
	return &pipe{w: p[1]}, os.NewFile(uintptr(p[0]), "rdma_cm"), nil
}

// set has n bytes in the pipe, or as many as it takes. A program that has read some itself gets them again.
func (p *pipe) set(n int) {
	if p.w < 0 {
		return
	}
	if p.n > n {
		p.take(p.n - n)
	}
	for p.n < n {
		if _, err := unix.Write(p.w, []byte{1}); err != nil {
			return // full, or without a reader
		}
		p.n++
	}
}

// take reads bytes back. A reading end that stayed open would hide that the program has closed its own.
func (p *pipe) take(n int) {
	r, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", p.w), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(r)
	got, err := unix.Read(r, make([]byte, n))
	if err != nil || got < n {
		p.n = 0
		return
	}
	p.n -= n
}

func (p *pipe) close() {
	if p.w >= 0 {
		unix.Close(p.w)
		p.w = -1
	}
}

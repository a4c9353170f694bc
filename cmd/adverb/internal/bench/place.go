package bench

import (
	"os/exec"
	"runtime"
)

// A place is where processes are started: a network namespace and cores. It is a thread that is in
// them, and a process that a thread starts is where the thread is. The processes are killed when the
// thread ends, so nothing is left of a run, however it ends.
type place struct {
	jobs chan func()
	done chan struct{}
}

// newPlace makes a place by calling enter on its thread.
func newPlace(enter func() error) (*place, error) {
	p := &place{make(chan func()), make(chan struct{})}
	entered := make(chan error)
	onThread(func() {
		defer close(p.done)
		entered <- enter()
		for f := range p.jobs {
			f()
		}
	})
	if err := <-entered; err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// do calls f on the place's thread.
func (p *place) do(f func() error) error {
	err := make(chan error)
	p.jobs <- func() { err <- f() }
	return <-err
}

func (p *place) start(cmd *exec.Cmd) error {
	dieWithThread(cmd)
	return p.do(cmd.Start)
}

func (p *place) close() {
	close(p.jobs)
	<-p.done
}

// onThread calls f on a thread of its own, which ends with f.
func onThread(f func()) {
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this goroutine
		if !isMainThread() {
			f()
			return
		}
		// That thread never ends. It stays with this goroutine until the other one has another.
		locked := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(locked)
			f()
		}()
		<-locked
		runtime.UnlockOSThread()
	}()
}

//go:build amd64 || arm64

package supervisor

import (
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// A Process is a process of the target. It lives longer than a Call: a device reads and writes memory by it whenever it
// has to.
type Process struct {
	TGID int
	mem  *memory

	mu    sync.RWMutex
	pidfd int // -1 once it is closed, when the process has ended
}

// Alive reports whether the process has not ended.
func (p *Process) Alive() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.pidfd >= 0 && unix.PidfdSendSignal(p.pidfd, 0, nil, 0) != unix.ESRCH
}

// copyFD copies a descriptor of the process: the copy has the same open file description.
func (p *Process) copyFD(fd uint32) (int, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.pidfd < 0 {
		return -1, unix.ESRCH
	}
	return unix.PidfdGetfd(p.pidfd, int(fd), 0)
}

// close is for a process that has ended. Devices may know it still.
func (p *Process) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	unix.Close(p.pidfd)
	p.pidfd = -1
}

// Read reads memory of the process, as Call.Read does.
func (p *Process) Read(addr uint64, b []byte) (int, error) {
	n, err := p.mem.read(p.TGID, addr, b)
	if !p.Alive() { // the ID may be another's
		return 0, unix.ESRCH
	}
	return n, err
}

// Write writes memory of the process, as Call.Write does.
func (p *Process) Write(addr uint64, b []byte) (int, error) {
	if !p.Alive() {
		return 0, unix.ESRCH
	}
	return p.mem.write(p.TGID, addr, b)
}

// processes are those of the target that somebody asked for.
type processes struct {
	mem  *memory
	mu   sync.Mutex
	byID map[int]*Process
	tids map[int]int // the process of a thread; checked before it is used
}

// mostTIDs bounds the cache of threads.
const mostTIDs = 1024

// tgid finds the process of a thread. The cache is right if the thread is one of that process.
func (p *processes) tgid(tid int) int {
	p.mu.Lock()
	g, ok := p.tids[tid]
	p.mu.Unlock()
	var st unix.Stat_t
	if ok && unix.Lstat("/proc/"+strconv.Itoa(g)+"/task/"+strconv.Itoa(tid), &st) == nil {
		return g
	}
	g, _ = strconv.Atoi(statusField(readStatus(tid), "Tgid:"))
	if g == 0 {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.tids) >= mostTIDs {
		clear(p.tids)
	}
	p.tids[tid] = g
	return g
}

// readStatus reads /proc/TID/status. It is empty if the thread is gone.
func readStatus(tid int) string {
	// As os.ReadFile, which would have the file's descriptor in the netpoller.
	fd, err := unix.Open("/proc/"+strconv.Itoa(tid)+"/status", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var b [4096]byte // a status has less than half of that
	n, err := unix.Read(fd, b[:])
	if err != nil {
		return ""
	}
	return string(b[:n])
}

// stateOf is a thread's state by its status, a letter as in proc(5), or empty.
func stateOf(status string) string {
	state := statusField(status, "State:")
	return state[:min(len(state), 1)]
}

// hasEnded reports whether a thread is a zombie, or gone, by its status.
func hasEnded(status string) bool { return strings.Contains("ZX", stateOf(status)) }

// statusField finds a field of /proc/PID/status.
func statusField(status, name string) string {
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func (p *processes) of(c *Call) (*Process, error) {
	g := p.tgid(c.TID)
	if g == 0 {
		return nil, unix.ESRCH
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if x := p.byID[g]; x != nil && x.Alive() {
		return x, nil
	}
	fd, err := unix.PidfdOpen(g, 0)
	if err != nil {
		return nil, err
	}
	if !c.s.l.valid(c.id) {
		unix.Close(fd)
		return nil, errGone
	}
	x := &Process{TGID: g, pidfd: fd, mem: p.mem}
	for g, x := range p.byID {
		if !x.Alive() {
			delete(p.byID, g)
			x.close()
		}
	}
	p.byID[g] = x
	return x, nil
}

// close forgets all processes, when nobody serves them any more.
func (p *processes) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for g, x := range p.byID {
		delete(p.byID, g)
		x.close()
	}
}

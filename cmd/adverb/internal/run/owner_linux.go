//go:build amd64 || arm64

package run

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/adverb-rdma/adverb/internal/supervisor"
	"github.com/adverb-rdma/adverb/internal/watch"
	"github.com/adverb-rdma/adverb/verbs"
)

// opener is the process of the program that opened a device. "adverb stat" and "adverb res" name it in place of the
// supervisor.
type opener struct {
	process *supervisor.Process

	mu      sync.Mutex
	command string // as of the latest look
}

// openedBy says for whom a device is open.
func openedBy(c *supervisor.Call, devices ...*verbs.Device) (forget func(), err error) {
	p, err := c.Process()
	if err != nil {
		return nil, err
	}
	o := &opener{process: p}
	var all []func()
	for _, d := range devices {
		all = append(all, watch.OpenedFor(d, o.owner))
	}
	return func() {
		for _, f := range all {
			f()
		}
	}, nil
}

// owner looks the command up each time: a process may have begun another program.
func (o *opener) owner() watch.Owner {
	o.mu.Lock()
	defer o.mu.Unlock()
	if b, err := os.ReadFile("/proc/" + strconv.Itoa(o.process.TGID) + "/cmdline"); err == nil && o.process.Alive() {
		if name, _, _ := bytes.Cut(b, []byte{0}); len(name) > 0 {
			o.command = filepath.Base(string(name))
		}
	}
	return watch.Owner{PID: o.process.TGID, Command: o.command}
}

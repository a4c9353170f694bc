package watch

import (
	"sync"

	"github.com/adverb-rdma/adverb/verbs"
)

// Owner is the process for which another process has a device open, as the supervisor of "adverb run" has it.
type Owner struct {
	PID     int    `json:"pid"`
	Command string `json:"command"`
}

// owners are the devices that this program has open for other processes.
var owners struct {
	mu sync.Mutex
	of map[*verbs.Device]func() Owner
}

// OpenedFor says that this program has a device open for another process. Whoever asks for devices gets to know that
// process in place of this one, if it is of this program's user. owner may be called at any time until forget is.
func OpenedFor(dev *verbs.Device, owner func() Owner) (forget func()) {
	o := &owners
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of == nil {
		o.of = make(map[*verbs.Device]func() Owner)
	}
	o.of[dev] = owner
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.of, dev)
	}
}

// ownerOf returns the owner of a device, or the zero Owner.
func ownerOf(dev *verbs.Device) Owner {
	owners.mu.Lock()
	f := owners.of[dev]
	owners.mu.Unlock()
	if f == nil {
		return Owner{}
	}
	return f()
}

// byOwner splits an answer into those of the owners, in the order of their first devices. ours reports whether a process
// is of the answering program's user: of others the program says what it likes.
func (p Process) byOwner(ours func(pid int) bool) []Process {
	all := []Process{{PID: p.PID, Command: p.Command, Devices: []Device{}, Alone: p.Alone}}
	at := map[Owner]int{{}: 0}
	for _, d := range p.Devices {
		o := d.Owner
		i, ok := at[o]
		if !ok {
			i = len(all)
			at[o] = i
			of := Process{PID: o.PID, Command: o.Command, Alone: p.Alone}
			if !ours(o.PID) {
				of.PID = p.PID
			}
			all = append(all, of)
		}
		d.Owner = Owner{}
		all[i].Devices = append(all[i].Devices, d)
	}
	if len(all) > 1 && len(all[0].Devices) == 0 {
		return all[1:]
	}
	return all
}

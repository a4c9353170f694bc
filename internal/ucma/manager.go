package ucma

import (
	"context"
	"os"
	"sync"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// Identity is how a program knows a device.
type Identity struct {
	NodeGUID verbs.GUID
	Index    uint32 // of the device in the kernel (ibdev_index), or NoIndex
}

// NoIndex leaves the choice of the device to the node GUID, as kernels do that do not tell the index.
const NoIndex = ^uint32(0)

// Config says which devices there are.
type Config struct {
	// Devices are those that IDs use. Without them IDs use those of the registered providers. The GID tables must be
	// those that the program sees by uverbs.
	Devices []*verbs.Device
	// Identify returns how the program knows a device. Without it that is the device's own node GUID.
	Identify func(*verbs.Device) Identity
}

const (
	// maxIDs is how many IDs a program may have. librdmacm finds no more by their numbers.
	maxIDs = 1 << 16
	// maxEvents is how many events may wait when an ID looks for its peer, which it may do without end while it fails.
	maxEvents = 1 << 14
)

// Manager is the common part of the openings of rdma_cm.
//
//	rdmacm --> Manager.pump --> Manager.route --> File.queue
//
// One goroutine takes the events of all IDs from rdmacm. So the queue of events is here, where IDs change files.
type Manager struct {
	config Config
	ch     *rdmacm.EventChannel
	end    func() // ends pump
	pumped sync.WaitGroup

	// mu guards the fields below, and the contents of files, IDs and groups. No call of rdmacm is made under it: such calls
	// may wait for the goroutine of a connector.
	mu     sync.Mutex
	files  map[*File]bool
	ids    slots[cmID]
	of     map[*rdmacm.ID]*cmID
	groups slots[group]
	pins   map[*verbs.Device]*rdmacm.ID
	closed bool
}

// New returns the connection manager of a program, which has opened nothing yet.
func New(config Config) *Manager {
	ctx, cancel := context.WithCancel(context.Background())
	m := &Manager{config: config, ch: rdmacm.NewEventChannel(config.Devices...), end: cancel,
		files: map[*File]bool{}, of: map[*rdmacm.ID]*cmID{}, pins: map[*verbs.Device]*rdmacm.ID{}}
	m.pumped.Go(func() { m.pump(ctx) })
	return m
}

// Close closes all files, and ends the rest.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	var files []*File
	for f := range m.files {
		files = append(files, f)
	}
	pins := m.pins
	m.pins = nil
	m.mu.Unlock()
	for _, f := range files {
		f.Close()
	}
	m.end()
	m.pumped.Wait()
	for _, id := range pins {
		id.Close()
	}
	return m.ch.Close()
}

// identify returns how the program knows a device.
func (m *Manager) identify(dev *verbs.Device) (Identity, error) {
	if m.config.Identify != nil {
		return m.config.Identify(dev), nil
	}
	attr, err := dev.Query()
	return Identity{attr.NodeGUID, NoIndex}, err
}

// pin keeps a device's connector while the manager exists, so that not every ID that comes and goes opens one, and that
// peers whose connections have ended still get answers. An ID that has found the way to its own address holds it, and
// has no port.
func (m *Manager) pin(v *rdmacm.ID) {
	dev, at := v.Device(), v.LocalAddr()
	if dev == nil || m.pinned(dev) {
		return
	}
	id, err := rdmacm.NewID(m.ch, rdmacm.PortSpaceTCP)
	if err != nil {
		return
	}
	const anyPort = 1
	err = id.ResolveAddr(withPort(at, 0), withPort(at, anyPort))
	m.mu.Lock()
	keep := err == nil && id.Device() == dev && m.pins != nil && m.pins[dev] == nil
	if keep {
		m.pins[dev] = id
	}
	m.mu.Unlock()
	if !keep {
		id.Close()
	}
}

// pinned reports whether a device needs no pin.
func (m *Manager) pinned(dev *verbs.Device) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pins == nil || m.pins[dev] != nil
}

// File is one opening of rdma_cm. What it has is guarded by m.mu.
type File struct {
	m        *Manager
	pipe     *pipe
	queue    []*event      // that the program has not read
	readable chan struct{} // closed when an event comes, or nil while nobody waits
	closed   bool
}

// Open opens rdma_cm. poll is what the program gets as its descriptor, and the caller's: a byte can be read from it for
// each event that waits, so that the program may poll it. On systems other than Linux it is nil.
func (m *Manager) Open() (f *File, poll *os.File, err error) {
	p, poll, err := newPipe()
	if err != nil {
		return nil, nil, err
	}
	f = &File{m: m, pipe: p}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		p.close()
		if poll != nil {
			poll.Close()
		}
		return nil, nil, verbs.ErrClosed
	}
	m.files[f] = true
	return f, poll, nil
}

// always is a channel that is closed.
var always = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Readable returns a channel that is closed when the file has an event, or is closed itself. After ErrWouldBlock,
// whoever serves the program's call waits for it, and then tries again: another call may have taken the event.
func (f *File) Readable() <-chan struct{} {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if len(f.queue) > 0 || f.closed {
		return always
	}
	if f.readable == nil {
		f.readable = make(chan struct{})
	}
	return f.readable
}

// changed has the program see how many events wait. The caller holds m.mu.
func (f *File) changed() {
	f.pipe.set(len(f.queue))
	if f.readable != nil && (len(f.queue) > 0 || f.closed) {
		close(f.readable)
		f.readable = nil
	}
}

// Close ends all IDs of the file: the program has closed it, or has ended. Peers are told.
func (f *File) Close() {
	f.m.mu.Lock()
	if f.closed {
		f.m.mu.Unlock()
		return
	}
	f.closed = true
	var ids []*rdmacm.ID
	for _, c := range f.m.ids.v {
		if c != nil && c.file == f {
			ids = append(ids, f.m.forget(c)...)
		}
	}
	f.queue = nil
	f.changed()
	f.pipe.close()
	delete(f.m.files, f)
	f.m.mu.Unlock()
	closeAll(ids)
}

// full reports whether the program has left too many events.
func (f *File) full() bool {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return len(f.queue) >= maxEvents
}

func closeAll(ids []*rdmacm.ID) {
	for _, id := range ids {
		_ = id.Close() // it fails for IDs with a QP alone
	}
}

// slots have objects by small numbers.
type slots[T any] struct {
	v    []*T
	free int // no number below it is free
}

// put gives an object the least number that is free, below a limit.
func (s *slots[T]) put(t *T, limit int) (number uint32, ok bool) {
	for s.free < len(s.v) && s.v[s.free] != nil {
		s.free++
	}
	if s.free == limit {
		return 0, false
	}
	if s.free == len(s.v) {
		s.v = append(s.v, nil)
	}
	s.v[s.free] = t
	s.free++
	return uint32(s.free - 1), true
}

// get returns the object with a number, or nil.
func (s *slots[T]) get(number uint32) *T {
	if uint64(number) >= uint64(len(s.v)) {
		return nil
	}
	return s.v[number]
}

func (s *slots[T]) drop(number uint32) {
	s.v[number] = nil
	s.free = min(s.free, int(number))
}

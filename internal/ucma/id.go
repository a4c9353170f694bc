package ucma

import (
	"errors"
	"slices"
	"syscall"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// cmID is an ID as the program has it. What is behind v is guarded by m.mu.
type cmID struct {
	v      *rdmacm.ID
	ps     rdmacm.PortSpace
	qpType verbs.QPType
	number uint32 // by which the program names it

	file     *File
	uid      uint64 // the program's own number, which its events have; 0 before a request's ID is accepted
	reported uint32 // events that the program has read
	request  *event // by which the program is to learn of the ID, or nil once it knows
	phase    phase
	ib       bool // the addresses are of AF_IB
	anyType  bool // requests for any type of QP are taken

	// responderResources is how many READs and atomics of the peer this end answers at a time, as far as the ends have
	// said.
	responderResources uint8
}

// phase is the state that Linux's answers depend on, beside the state of rdmacm.
type phase struct {
	routed      bool // there is a path
	begun       bool // there is a connection, or the wish for one
	established bool
	over        bool // the connection, or the wish for one, has ended
	listens     bool
	gone        bool // with its device
}

// establish takes note that the connection stands.
func (p *phase) establish() { p.established = true }

// end takes note that the connection, or the wish for one, has ended.
func (p *phase) end() { p.established, p.over = false, true }

// answers takes note of how many READs and atomics this end answers at a time.
func (c *cmID) answers(n uint8) { c.responderResources = n }

// waitsFor takes note of the event by which the program is to learn of the ID. It is nil once the program knows.
func (c *cmID) waitsFor(ev *event) { c.request = ev }

// find returns the ID with a number, also one that has lost its device. The caller holds m.mu.
func (f *File) find(number uint32) (*cmID, error) {
	c := f.m.ids.get(number)
	switch {
	case c == nil || c.request != nil: // nobody has told the program of the latter
		return nil, syscall.ENOENT
	case c.file != f:
		return nil, syscall.EINVAL
	}
	return c, nil
}

// get returns the ID with a number.
func (f *File) get(number uint32) (*cmID, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	c, err := f.find(number)
	if err == nil && c.phase.gone {
		return nil, syscall.EIO
	}
	return c, err
}

// withDevice is get for commands that need the ID's device.
func (f *File) withDevice(number uint32) (*cmID, error) {
	c, err := f.get(number)
	if err == nil && c.v.Device() == nil {
		return nil, syscall.EINVAL
	}
	return c, err
}

// look returns the ID's phase.
func (c *cmID) look(m *Manager) phase {
	m.mu.Lock()
	defer m.mu.Unlock()
	return c.phase
}

// set changes fields that m.mu guards.
func (c *cmID) set(m *Manager, change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

// portSpace returns the port space that a program asks for, and the type of QPs.
func portSpace(in *uapi.CMCreate) (rdmacm.PortSpace, verbs.QPType, error) {
	switch in.PS {
	case uapi.PSTCP:
		return rdmacm.PortSpaceTCP, verbs.QPTypeRC, nil
	case uapi.PSUDP:
		return rdmacm.PortSpaceUDP, verbs.QPTypeUD, nil
	case uapi.PSIB:
		switch t := verbs.QPType(in.QPType); t {
		case 0: // any, at a listener
			return rdmacm.PortSpaceIB, verbs.QPTypeRC, nil
		case verbs.QPTypeRC, verbs.QPTypeUC:
			return rdmacm.PortSpaceIB, t, nil
		}
		return 0, 0, syscall.EOPNOTSUPP
	case uapi.PSIPoIB:
		return 0, 0, syscall.EPROTONOSUPPORT
	}
	return 0, 0, syscall.EINVAL
}

func (f *File) create(k *call) error {
	var (
		in   uapi.CMCreate
		resp uapi.CMCreateResp
	)
	if err := k.needsAll(resp); err != nil {
		return err
	}
	if err := k.in(&in); err != nil {
		return err
	}
	ps, typ, err := portSpace(&in)
	if err != nil {
		return err
	}
	v, err := rdmacm.NewID(f.m.ch, ps)
	if err != nil {
		return err
	}
	c := &cmID{v: v, ps: ps, qpType: typ, anyType: in.QPType == 0 && in.PS == uapi.PSIB, file: f, uid: in.UID}
	if err = v.SetQPType(typ); err == nil {
		err = f.m.add(c)
	}
	if err != nil {
		v.Close()
		return err
	}
	if err := k.out(in.Response, uapi.CMCreateResp{ID: c.number}); err != nil {
		f.end(c.number)
		return err
	}
	return nil
}

// add gives an ID its number.
func (m *Manager) add(c *cmID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.file.closed {
		return syscall.EIO
	}
	return m.enter(c)
}

// enter is add for callers that hold m.mu.
func (m *Manager) enter(c *cmID) error {
	n, ok := m.ids.put(c, maxIDs)
	if !ok {
		return syscall.ENOMEM
	}
	c.number = n
	m.of[c.v] = c
	return nil
}

// forget takes an ID away from the program, with its groups, and with its events that the program has not read. It
// returns the IDs to close: requests that nobody will answer are among them. The caller holds m.mu.
func (m *Manager) forget(c *cmID) []*rdmacm.ID {
	if m.ids.get(c.number) != c {
		return nil
	}
	m.ids.drop(c.number)
	delete(m.of, c.v)
	for _, g := range m.groups.v {
		if g != nil && g.c == c {
			m.groups.drop(g.number)
		}
	}
	ids := []*rdmacm.ID{c.v}
	for _, ev := range c.file.dropEvents(func(ev *event) bool { return ev.of == c }) {
		if ev.child != nil {
			ids = append(ids, m.forget(ev.child)...)
		}
	}
	return ids
}

// end destroys an ID. It returns how many of its events the program has read.
func (f *File) end(number uint32) (reported uint32, err error) {
	f.m.mu.Lock()
	c, err := f.find(number)
	if err != nil {
		f.m.mu.Unlock()
		return 0, err
	}
	ids := f.m.forget(c)
	reported = c.reported
	f.m.mu.Unlock()
	closeAll(ids)
	return reported, nil
}

func (f *File) destroy(k *call) error {
	var (
		in   uapi.CMDestroy
		resp uapi.CMDestroyResp
		err  error
	)
	if err := k.needsAll(resp); err != nil {
		return err
	}
	if err := k.in(&in); err != nil {
		return err
	}
	if resp.EventsReported, err = f.end(in.ID); err != nil {
		return err
	}
	return k.out(in.Response, resp)
}

// migrate moves an ID here from another file, with its events that the program has not read. Requests go with their
// listener.
func (f *File) migrate(k *call) error {
	var in uapi.CMMigrate
	if err := k.in(&in); err != nil {
		return err
	}
	from, err := k.File(in.FD)
	switch {
	case errors.Is(err, syscall.EBADF):
		return syscall.ENOENT // as Linux says
	case err != nil:
		return err
	case from == nil || from.m != f.m:
		return syscall.EINVAL
	}
	c, err := from.get(in.ID)
	if err != nil {
		return err
	}
	resp, err := f.take(c, from)
	if err != nil {
		return err
	}
	return k.out(in.Response, resp)
}

// take does the work of migrate.
func (f *File) take(c *cmID, from *File) (resp uapi.CMDestroyResp, err error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.m.ids.get(c.number) != c || c.file != from { // meanwhile
		return resp, syscall.ENOENT
	}
	if f.closed {
		return resp, syscall.EIO
	}
	resp.EventsReported = c.reported
	if f == from {
		return resp, nil
	}
	moved := from.dropEvents(func(ev *event) bool { return ev.of == c })
	c.file = f
	for _, ev := range moved {
		if ev.child != nil {
			ev.child.file = f
		}
	}
	f.queue = slices.Concat(f.queue, moved)
	f.changed()
	return resp, nil
}

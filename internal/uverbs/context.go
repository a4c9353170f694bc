//go:build linux

package uverbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/verbs"
)

// Caller is the program, in a call that waits for its answer.
type Caller interface {
	// ReadMemory fills b from the program's memory, and WriteMemory writes b there.
	ReadMemory(addr uint64, b []byte) error
	WriteMemory(addr uint64, b []byte) error
	// Inject gives the program a descriptor of f, and returns its number there.
	Inject(f *os.File, cloexec bool) (fd int, err error)
}

// Memory registers a program's memory.
type Memory interface {
	// Register makes a region of length bytes from start on, whose first byte has the virtual address iova.
	Register(c Caller, pd *verbs.PD, start, length, iova uint64, access verbs.Access) (*verbs.MR, error)
	// RegisterOnDemand is Register for memory that the program may map and unmap meanwhile, which it need not have mapped
	// yet: each access reaches the pages that are mapped at that time.
	RegisterOnDemand(c Caller, pd *verbs.PD, start, length, iova uint64, access verbs.Access) (*verbs.MR, error)
	// Deregister ends a region.
	Deregister(mr *verbs.MR) error
}

// Context is one opening of a device.
type Context struct {
	dev    *verbs.Device
	memory Memory
	attr   verbs.DeviceAttr
	area   *area
	async  *channel // nil before GET_CONTEXT
	events sync.WaitGroup

	// mu makes commands one at a time, and guards the tables. Doorbells read qps alone.
	mu       sync.RWMutex
	next     uint32 // handle
	pds      table[*verbs.PD]
	mrs      table[*region]
	mws      table[*verbs.MW]
	cqs      table[*cq]
	qps      table[*qp]
	srqs     table[*srq]
	ahs      table[*verbs.AH]
	channels map[int32]*channel // by the program's descriptor
	closed   bool
	end      func() // ends the wait for events

	named named
}

// named are the objects that work requests name. It has a lock of its own, since doorbells come while commands are
// carried out.
type named struct {
	mu  sync.RWMutex
	ahs map[uint32]*verbs.AH // by number
	mws map[uint32]*verbs.MW // by key, without the 8 bits that binding changes
	mrs map[uint32]*verbs.MR // by L_Key
}

func (n *named) ah(num uint32) (*verbs.AH, bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	v, ok := n.ahs[num]
	return v, ok
}

func (n *named) mw(rkey uint32) (*verbs.MW, bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	v, ok := n.mws[rkey>>8]
	return v, ok
}

func (n *named) mr(lkey uint32) (*verbs.MR, bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	v, ok := n.mrs[lkey]
	return v, ok
}

// put and drop keep one of the maps.
func put[T any](n *named, m map[uint32]T, key uint32, v T) {
	n.mu.Lock()
	defer n.mu.Unlock()
	m[key] = v
}

func drop[T any](n *named, m map[uint32]T, key uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(m, key)
}

// table has objects by their handles. Handles of one context differ over all its tables.
type table[T any] map[uint32]T

// get returns an object. Linux says EINVAL for a handle that is none.
func (t table[T]) get(handle uint32) (v T, err error) {
	v, ok := t[handle]
	if !ok {
		return v, unix.EINVAL
	}
	return v, nil
}

// Open opens a device, of which the context becomes the owner.
func Open(dev *verbs.Device, memory Memory) (*Context, error) {
	attr, err := dev.Query()
	if err != nil {
		return nil, err
	}
	a, err := newArea("adverb-" + dev.Name())
	if err != nil {
		return nil, err
	}
	return &Context{dev: dev, memory: memory, attr: attr, area: a,
		pds: table[*verbs.PD]{}, mrs: table[*region]{}, mws: table[*verbs.MW]{}, cqs: table[*cq]{}, qps: table[*qp]{},
		srqs: table[*srq]{}, ahs: table[*verbs.AH]{}, channels: map[int32]*channel{},
		named: named{ahs: map[uint32]*verbs.AH{}, mws: map[uint32]*verbs.MW{}, mrs: map[uint32]*verbs.MR{}}}, nil
}

// File is the file whose descriptor the program gets, and in which the queues lie. It is the context's.
func (c *Context) File() *os.File { return c.area.file }

// Device is the context's device.
func (c *Context) Device() *verbs.Device { return c.dev }

// Close ends all that the program has made by the context: the program has closed the device, or has ended.
func (c *Context) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	if c.end != nil {
		c.end()
	}
	// Users of an object go before it.
	for _, q := range c.qps {
		q.mu.Lock() // the doorbell of a program that was killed may be under way
		_ = q.v.Close()
		q.drop()
		q.mu.Unlock()
	}
	for _, s := range c.srqs {
		_ = s.v.Close()
		s.drop()
	}
	for _, a := range c.ahs {
		_ = a.Close()
	}
	for _, w := range c.mws {
		_ = w.Close()
	}
	for _, r := range c.mrs {
		_ = c.memory.Deregister(r.v)
	}
	for _, q := range c.cqs {
		q.destroy()
	}
	for _, pd := range c.pds {
		_ = pd.Close()
	}
	err := c.dev.Close()
	for _, ch := range c.channels {
		ch.close()
	}
	c.mu.Unlock()
	c.events.Wait() // it sends to async
	if c.async != nil {
		c.async.close()
	}
	c.area.close()
	return err
}

// Do carries out a command. Where Do fails, Errno returns the error for the program.
func (c *Context) Do(caller Caller, cmd uapi.Command) error {
	run, ok := commands[cmd.Number]
	if !ok {
		return fmt.Errorf("command %#x: %w", uint32(cmd.Number), unix.EOPNOTSUPP)
	}
	if cmd.Invoked && len(cmd.In) == 0 {
		return unix.ENOSPC // by which libibverbs tells that there is INVOKE_WRITE
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return unix.EIO
	case c.async == nil && cmd.Number != uapi.CmdGetContext:
		return unix.EINVAL // Linux demands GET_CONTEXT first
	}
	return run(c, &call{Caller: caller, cmd: cmd})
}

// commands are those that rxe's provider, libibverbs and librdmacm use. What they are refused is a command that rxe does
// not have either.
var commands = map[uapi.CommandNumber]func(*Context, *call) error{
	uapi.CmdGetContext:        (*Context).getContext,
	uapi.CmdQueryDevice:       (*Context).queryDevice,
	uapi.CmdExQueryDevice:     (*Context).exQueryDevice,
	uapi.CmdQueryPort:         (*Context).queryPort,
	uapi.CmdAllocPD:           (*Context).allocPD,
	uapi.CmdDeallocPD:         (*Context).deallocPD,
	uapi.CmdRegMR:             (*Context).regMR,
	uapi.CmdReregMR:           (*Context).reregMR,
	uapi.CmdDeregMR:           (*Context).deregMR,
	uapi.CmdAllocMW:           (*Context).allocMW,
	uapi.CmdDeallocMW:         (*Context).deallocMW,
	uapi.CmdCreateAH:          (*Context).createAH,
	uapi.CmdDestroyAH:         (*Context).destroyAH,
	uapi.CmdCreateCompChannel: (*Context).createCompChannel,
	uapi.CmdCreateCQ:          (*Context).createCQ,
	uapi.CmdExCreateCQ:        (*Context).exCreateCQ,
	uapi.CmdResizeCQ:          (*Context).resizeCQ,
	uapi.CmdReqNotifyCQ:       (*Context).reqNotifyCQ,
	uapi.CmdDestroyCQ:         (*Context).destroyCQ,
	uapi.CmdCreateQP:          (*Context).createQP,
	uapi.CmdExCreateQP:        (*Context).exCreateQP,
	uapi.CmdQueryQP:           (*Context).queryQP,
	uapi.CmdModifyQP:          (*Context).modifyQP,
	uapi.CmdExModifyQP:        (*Context).exModifyQP,
	uapi.CmdDestroyQP:         (*Context).destroyQP,
	uapi.CmdPostSend:          (*Context).postSend,
	uapi.CmdAttachMcast:       (*Context).attachMcast,
	uapi.CmdDetachMcast:       (*Context).detachMcast,
	uapi.CmdCreateSRQ:         (*Context).createSRQ,
	uapi.CmdCreateXSRQ:        (*Context).createXSRQ,
	uapi.CmdModifySRQ:         (*Context).modifySRQ,
	uapi.CmdQuerySRQ:          (*Context).querySRQ,
	uapi.CmdDestroySRQ:        (*Context).destroySRQ,
}

// call is a command that is being carried out.
type call struct {
	Caller
	cmd uapi.Command
}

// in decodes the command's input.
func (k *call) in(v any) error {
	if err := uapi.Decode(k.cmd.In, v); err != nil {
		return errors.Join(err, unix.EINVAL)
	}
	return nil
}

// inPrefix decodes input that older programs write without its end.
func (k *call) inPrefix(least int, v any) error {
	if err := uapi.DecodePrefix(k.cmd.In, least, v); err != nil {
		return errors.Join(err, unix.EINVAL)
	}
	return nil
}

// needs says that the program has room for the response. Linux answers ENOSPC where it has not.
func (k *call) needs(resp, driver any) error {
	n, d := binary.Size(resp), 0
	if driver != nil {
		d = binary.Size(driver)
	}
	core, rest := k.cmd.Split(n)
	if core.Length < n || rest.Length < d {
		return unix.ENOSPC
	}
	return nil
}

// out writes the response, and the driver's part.
func (k *call) out(resp, driver any) error {
	b := uapi.Append(nil, resp)
	core, rest := k.cmd.Split(len(b))
	if err := k.put(core, b); err != nil || driver == nil {
		return err
	}
	return k.put(rest, uapi.Append(nil, driver))
}

// put writes as much as the buffer takes: older programs have less room.
func (k *call) put(to uapi.Buffer, b []byte) error {
	b = b[:min(len(b), to.Length)]
	if len(b) == 0 {
		return nil
	}
	if err := k.WriteMemory(to.Addr, b); err != nil {
		return errors.Join(err, unix.EFAULT)
	}
	return nil
}

// handle returns a number for another object.
func (c *Context) handle() uint32 {
	for {
		c.next++
		h := c.next
		used := has(c.pds, h) || has(c.mrs, h) || has(c.mws, h) || has(c.cqs, h) || has(c.qps, h) || has(c.srqs, h) || has(c.ahs, h)
		if h != 0 && !used {
			return h
		}
	}
}

func has[T any](t table[T], h uint32) bool { _, ok := t[h]; return ok }

// Errno returns the error number that Linux would give a program for an error.
func Errno(err error) unix.Errno {
	var e unix.Errno
	if errors.As(err, &e) {
		return e
	}
	for _, k := range []struct {
		kind  error
		errno unix.Errno
	}{
		{verbs.ErrBusy, unix.EBUSY},
		{verbs.ErrLimit, unix.ENOMEM},
		{verbs.ErrQueueFull, unix.ENOMEM},
		{verbs.ErrUnsupported, unix.EOPNOTSUPP},
		{verbs.ErrNotFound, unix.ENOENT},
		{verbs.ErrClosed, unix.EIO},
	} {
		if errors.Is(err, k.kind) {
			return k.errno
		}
	}
	return unix.EINVAL
}

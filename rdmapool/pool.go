// Package rdmapool lends out registered memory, so that a program need not register a region for
// each message.
//
// To register memory is slow: the device learns its pages and makes keys for it. Programs therefore
// register large regions once and cut buffers from them. A [Pool] does that within a limit. A
// program that asks for more than the limit waits until a buffer comes back, and so a fast producer
// is held back by a slow consumer:
//
//	pool, err := rdmapool.New(pd, nil)
//	buf, err := pool.Get(ctx, 100_000)
//	n := copy(buf.Bytes(), data)
//	qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, SGList: []verbs.SGE{buf.SGE(0, n)}}})
//	// … and once the completion has come:
//	buf.Release()
//
// A buffer must not be released while a work request that names it is under way, because its next
// user would share it with the device.
//
// Every buffer of a pool has a key that opens the whole region around it. A peer that gets one
// from [Buffer.Remote] can reach the neighbors too. So peers that must not see each other's data
// need pools of their own.
package rdmapool

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"

	"github.com/adverb-rdma/adverb/verbs"
)

// Sizes, in bytes, that we chose.
const (
	// DefaultLimit is a pool's limit unless Config names another.
	DefaultLimit = 64 << 20

	minClass = 1 << 12   // the smallest buffers: a page
	slabSize = 256 << 10 // regions for small buffers are this long; larger buffers have their own
)

// DefaultAccess is what a pool's regions allow unless Config says otherwise. Peers may read and
// write them, if they know the key.
const DefaultAccess = verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteWrite

// ErrTooLarge is the cause of the error for a buffer that the pool's limit never allows.
var ErrTooLarge = errors.New("larger than the pool's limit")

// Config says how large a pool may grow. A nil Config is an empty one.
type Config struct {
	Limit  int          // bytes that the pool registers at most; 0 is DefaultLimit
	Access verbs.Access // what its regions allow; 0 is DefaultAccess
}

// Pool lends out buffers of registered memory. Its methods may be called from any goroutine. Get
// and Release allocate nothing once the pool has grown to what the program needs, unless Get has to
// wait.
type Pool struct {
	pd     *verbs.PD
	limit  int
	access verbs.Access

	mu         sync.Mutex
	classes    []class
	registered int       // bytes of all slabs
	lent       int       // bytes of all buffers that are lent out, as their classes count them
	waiters    []*waiter // in the order in which they came
	closed     bool
}

// class holds the buffers of one size, which is a power of two or the pool's limit.
type class struct {
	size  int
	slabs []*slab
	free  []*Buffer
}

// slab is a region and the buffers that are cut from it.
type slab struct {
	mr   *verbs.MR
	bufs []Buffer
	lent int // how many of them are lent out
}

// waiter is a Get that waits for memory.
type waiter struct {
	n    int
	done chan struct{} // closed once buf or err is set
	buf  *Buffer
	err  error
}

// New makes a pool of a protection domain. It registers memory when buffers are asked for.
func New(pd *verbs.PD, c *Config) (*Pool, error) {
	p := &Pool{pd: pd, limit: DefaultLimit, access: DefaultAccess}
	if c != nil && c.Limit != 0 {
		p.limit = c.Limit
	}
	if c != nil && c.Access != 0 {
		p.access = c.Access
	}
	if p.limit < minClass {
		return nil, fmt.Errorf("rdmapool: new pool: a limit of %d bytes: at least %d", p.limit, minClass)
	}
	for size := minClass; size < p.limit; size *= 2 {
		p.classes = append(p.classes, class{size: size})
	}
	p.classes = append(p.classes, class{size: p.limit})
	return p, nil
}

// PD returns the protection domain of the pool's regions.
func (p *Pool) PD() *verbs.PD { return p.pd }

// Limit returns how many bytes the pool registers at most. It is also the longest buffer's length.
func (p *Pool) Limit() int { return p.limit }

// Stats are a pool's sizes in bytes.
type Stats struct {
	Registered int // what the regions of the pool take up
	Lent       int // what is lent out, rounded up to the sizes that the pool cuts
	Waiting    int // how many calls of Get wait
}

// Stats returns the pool's sizes at the moment.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{Registered: p.registered, Lent: p.lent, Waiting: len(p.waiters)}
}

// Get returns a buffer of n bytes. Its contents are those of its last user. If the limit leaves no
// room, Get waits for buffers to come back; calls are served in the order in which they came. The
// error is ctx's, verbs.ErrClosed after Close, or ErrTooLarge for more than the limit.
func (p *Pool) Get(ctx context.Context, n int) (*Buffer, error) {
	p.mu.Lock()
	b, err := p.tryGet(n)
	if b != nil || err != nil {
		p.mu.Unlock()
		return b, err
	}
	w := &waiter{n: n, done: make(chan struct{})}
	p.waiters = append(p.waiters, w)
	p.mu.Unlock()
	select {
	case <-w.done:
		return w.buf, w.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.waiters, w); i >= 0 {
		p.waiters = slices.Delete(p.waiters, i, i+1)
		p.serve() // those behind may be content with less
		return nil, fmt.Errorf("rdmapool: get %d bytes: %w", n, context.Cause(ctx))
	}
	return w.buf, w.err // it came at the same time
}

// TryGet is Get without waiting: it returns nil if there is no room, or if others wait already.
func (p *Pool) TryGet(n int) *Buffer {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, _ := p.tryGet(n)
	return b
}

// tryGet returns nil and no error where Get has to wait.
func (p *Pool) tryGet(n int) (*Buffer, error) {
	switch {
	case n < 0:
		panic(fmt.Sprintf("rdmapool: a buffer of %d bytes", n))
	case p.closed:
		return nil, fmt.Errorf("rdmapool: get %d bytes: %w", n, verbs.ErrClosed)
	case n > p.limit:
		return nil, fmt.Errorf("rdmapool: get %d bytes: %w, %d bytes", n, ErrTooLarge, p.limit)
	case len(p.waiters) > 0:
		return nil, nil
	}
	return p.take(n)
}

// take takes a free buffer, and registers memory if there is none and the limit allows it.
func (p *Pool) take(n int) (*Buffer, error) {
	c := &p.classes[p.classOf(n)]
	if len(c.free) == 0 {
		if ok, err := p.grow(c); !ok {
			return nil, err
		}
	}
	last := len(c.free) - 1
	b := c.free[last]
	c.free = c.free[:last]
	b.lend(n)
	b.slab.lent++
	p.lent += c.size
	return b, nil
}

// putBack takes back a buffer that was released. The caller holds p.mu.
func (p *Pool) putBack(b *Buffer) {
	c := b.class
	b.slab.lent--
	p.lent -= c.size
	if p.closed {
		_ = p.sweep() // Close has returned already
		return
	}
	c.free = append(c.free, b)
	if len(p.waiters) > 0 {
		p.serve()
	}
}

// classOf returns the index of the smallest class whose buffers hold n bytes.
func (p *Pool) classOf(n int) int {
	if n <= minClass {
		return 0
	}
	return min(bits.Len(uint(n-1))-bits.Len(uint(minClass-1)), len(p.classes)-1)
}

// grow registers a slab for a class. It gives idle slabs of other classes back where the limit
// demands it.
func (p *Pool) grow(c *class) (bool, error) {
	size := c.size
	if size < slabSize && p.registered+slabSize <= p.limit {
		size = slabSize
	}
	if p.registered+size > p.limit && !p.shrink(size) {
		return false, nil
	}
	mr, err := p.pd.AllocMR(size, p.access)
	if err != nil {
		return false, fmt.Errorf("rdmapool: %w", err)
	}
	s := &slab{mr: mr, bufs: make([]Buffer, size/c.size)}
	for i := range s.bufs {
		s.bufs[i] = Buffer{pool: p, class: c, slab: s, off: i * c.size}
		c.free = append(c.free, &s.bufs[i])
	}
	c.slabs = append(c.slabs, s)
	p.registered += size
	return true, nil
}

// shrink deregisters slabs of which nothing is lent out until size more bytes fit the limit. It
// does nothing if that cannot be reached.
func (p *Pool) shrink(size int) bool {
	idle := 0
	for i := range p.classes {
		for _, s := range p.classes[i].slabs {
			if s.lent == 0 {
				idle += s.mr.Len()
			}
		}
	}
	if p.registered-idle+size > p.limit {
		return false
	}
	for i := range p.classes {
		c := &p.classes[i]
		c.slabs = slices.DeleteFunc(c.slabs, func(s *slab) bool {
			if s.lent > 0 || p.registered+size <= p.limit {
				return false
			}
			n := s.mr.Len()
			if s.mr.Close() != nil { // a window of the program's is bound to it
				return false
			}
			p.registered -= n
			c.free = slices.DeleteFunc(c.free, func(b *Buffer) bool { return b.slab == s })
			return true
		})
	}
	return p.registered+size <= p.limit
}

// serve gives what is free to those who wait, in order.
func (p *Pool) serve() {
	for len(p.waiters) > 0 {
		w := p.waiters[0]
		if w.buf, w.err = p.take(w.n); w.buf == nil && w.err == nil {
			return
		}
		p.waiters = slices.Delete(p.waiters, 0, 1)
		close(w.done)
	}
}

// Close ends the pool, and deregisters its memory. Buffers that are lent out stay valid: the memory
// around each goes when the last buffer in it is released. Calls of Get that wait return
// verbs.ErrClosed. To close a second time does nothing.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, w := range p.waiters {
		w.err = fmt.Errorf("rdmapool: get %d bytes: %w", w.n, verbs.ErrClosed)
		close(w.done)
	}
	p.waiters = nil
	return p.sweep()
}

// sweep deregisters the slabs of a closed pool of which nothing is lent out.
func (p *Pool) sweep() error {
	var failed error
	for i := range p.classes {
		c := &p.classes[i]
		c.free = nil
		c.slabs = slices.DeleteFunc(c.slabs, func(s *slab) bool {
			if s.lent > 0 {
				return false
			}
			p.registered -= s.mr.Len()
			if err := s.mr.Close(); err != nil {
				failed = fmt.Errorf("rdmapool: close: %w", err)
			}
			return true
		})
	}
	return failed
}

// Buffer is registered memory that a Pool has lent out. It belongs to the caller of Get until
// Release.
type Buffer struct {
	pool  *Pool
	class *class
	slab  *slab
	off   int // in the slab
	n     int
	out   bool // lent out
}

// lend lends the buffer out, with a length.
func (b *Buffer) lend(n int) { b.n, b.out = n, true }

// Len returns the buffer's length: what Get was asked for, or what SetLen has made of it.
func (b *Buffer) Len() int { return b.n }

// SetLen changes the length. It panics beyond the capacity, which is that of Bytes.
func (b *Buffer) SetLen(n int) {
	if n < 0 || n > b.class.size {
		panic(fmt.Sprintf("rdmapool: Buffer.SetLen(%d) of a buffer with room for %d bytes", n, b.class.size))
	}
	b.n = n
}

// Bytes returns the memory. The slice must not be used after Release. Bytes, SGE and Remote panic after
// Release, until the buffer is lent out again.
func (b *Buffer) Bytes() []byte {
	b.check("Bytes")
	return b.slab.mr.Bytes()[b.off : b.off+b.n : b.off+b.class.size]
}

// SGE returns the SGE that names the bytes [off, off+n) of the buffer. It panics if they are not
// all inside it, as slicing does.
func (b *Buffer) SGE(off, n int) verbs.SGE {
	b.check("SGE")
	if off < 0 || n < 0 || off > b.n || n > b.n-off {
		panic(fmt.Sprintf("rdmapool: Buffer.SGE(%d, %d) of a buffer of %d bytes", off, n, b.n))
	}
	return b.slab.mr.SGE(b.off+off, n)
}

// Remote returns how a peer names the buffer from offset off on. It panics if off is outside the
// buffer. The key opens the whole region that the buffer was cut from.
func (b *Buffer) Remote(off int) verbs.RemoteAddr {
	b.check("Remote")
	if off < 0 || off > b.n {
		panic(fmt.Sprintf("rdmapool: Buffer.Remote(%d) of a buffer of %d bytes", off, b.n))
	}
	return b.slab.mr.Remote(b.off + off)
}

func (b *Buffer) check(method string) {
	if !b.out {
		panic("rdmapool: Buffer." + method + " of a buffer that was released")
	}
}

// Release gives the buffer back. No work request that names it may be under way. It panics if the
// buffer was released already.
func (b *Buffer) Release() {
	p := b.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if !b.out {
		panic("rdmapool: a buffer was released twice")
	}
	b.out = false
	p.putBack(b)
}

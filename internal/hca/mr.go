package hca

import (
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/adverb-rdma/adverb/internal/transport"
	"github.com/adverb-rdma/adverb/verbs"
)

// mr is a memory region. Its key is both lkey and rkey: 24 bits of table index and 8 random
// ones, so that all 32 are random.
type mr struct {
	pd     *pd
	buf    []byte
	base   uint64 // virtual address of buf[0]
	key    uint32
	access verbs.Access

	refs    atomic.Int64 // packets that use the memory at present; negative once closing
	drained chan struct{}

	pinner   runtime.Pinner
	unpinned sync.Once
	free     func() error // of allocated memory

	windows atomic.Int32 // bound to the region; mrClosed once it closes
	window  *mw          // this is no region but the entry of a window in the table of keys
}

// mrClosed is more below zero than windows could make up for.
const mrClosed = -1 << 30

// mrClosing is added to refs by Close: far more than there can be users.
const mrClosing = -1 << 62

const keyBits = 8 // random bits of a key below the table index

// RegMR implements verbs.ProviderPD.
func (p *pd) RegMR(attr verbs.MRAttr) (verbs.ProviderMR, error) {
	m, err := p.register(attr)
	if err != nil {
		return nil, err
	}
	return &mrHandle{m}, nil
}

func (p *pd) register(attr verbs.MRAttr) (*mr, error) {
	m := &mr{pd: p, buf: attr.Buf, access: attr.Access, drained: make(chan struct{})}
	if m.buf == nil {
		buf, free, err := allocMemory(attr.Length)
		if err != nil {
			return nil, verbs.Errorf(verbs.ErrLimit, "allocate %d bytes: %w", attr.Length, err)
		}
		m.buf, m.free = buf, free
	} else {
		m.pinner.Pin(unsafe.SliceData(m.buf))
	}
	m.base = addrOf(m.buf)
	switch {
	case attr.HasIOVA:
		m.base = attr.IOVA
	case attr.Access&verbs.AccessZeroBased != 0:
		m.base = 0
	}
	if p.dev.mrs.add(m, func(n uint32) { m.key = n<<keyBits | random32()&(1<<keyBits-1) }) != nil {
		m.giveBack()
		return nil, verbs.Errorf(verbs.ErrLimit, "the device has its %d MRs and MWs (max_mr)", maxMR)
	}
	return m, nil
}

func (m *mr) Bytes() []byte    { return m.buf }
func (m *mr) Addr() uint64     { return m.base }
func (m *mr) LKey() verbs.LKey { return verbs.LKey(m.key) }
func (m *mr) RKey() verbs.RKey { return verbs.RKey(m.key) }

// Close returns when no packet uses the memory any more.
func (m *mr) Close() error {
	if n := m.windows.Load(); !m.windows.CompareAndSwap(0, mrClosed) {
		return verbs.Errorf(verbs.ErrBusy, "%d memory windows are bound to it: invalidate, unbind or close them first", max(n, 1))
	}
	m.pd.dev.mrs.remove(m.key >> keyBits)
	if m.refs.Add(mrClosing) != mrClosing {
		<-m.drained
	}
	return m.giveBack()
}

func addrOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// giveBack gives the memory back.
func (m *mr) giveBack() error {
	m.unpin()
	if m.free != nil {
		return m.free()
	}
	return nil
}

// unpin is called by Close and by the device's end.
func (m *mr) unpin() { m.unpinned.Do(m.pinner.Unpin) }

// acquire keeps the memory in place until release, or returns false if it is going.
func (m *mr) acquire() bool {
	for {
		n := m.refs.Load()
		if n < 0 {
			return false // and refs untouched: only those who hold the memory count down to the end
		}
		if m.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (m *mr) release() {
	if m.refs.Add(-1) == mrClosing {
		close(m.drained)
	}
}

// addWindow counts a window that is bound to the region, unless that closes.
func (m *mr) addWindow() bool {
	for {
		n := m.windows.Load()
		if n < 0 {
			return false
		}
		if m.windows.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// lookup finds and acquires the region that a key names for a PD, and the n bytes at va in it.
func (d *Device) lookup(p *pd, key uint32, va uint64, n uint32, need verbs.Access) (*mr, []byte, error) {
	m := d.mrs.get(key >> keyBits)
	if m == nil || m.window != nil || m.key != key || !m.acquire() {
		return nil, nil, verbs.Errorf(verbs.ErrNotFound, "key %#08x: no such memory region: was it deregistered, or the key mangled?", key)
	}
	off := va - m.base
	switch {
	case m.pd != p:
		m.release()
		return nil, nil, verbs.Errorf(verbs.ErrInvalid, "key %#08x: the memory region belongs to another PD than the QP", key)
	case m.access&need != need:
		m.release()
		return nil, nil, verbs.Errorf(verbs.ErrInvalid, "key %#08x: the memory region has %v, and %v is needed", key, m.access, need)
	case off > uint64(len(m.buf)) || uint64(n) > uint64(len(m.buf))-off:
		m.release()
		return nil, nil, verbs.Errorf(verbs.ErrInvalid, "key %#08x: bytes [%#x, %#x) are outside the memory region, [%#x, %#x)",
			key, va, va+uint64(n), m.base, m.base+uint64(len(m.buf)))
	}
	return m, m.buf[off : off+uint64(n)], nil
}

// Gather implements transport.Host.
func (q *qp) Gather(dst []byte, sg []verbs.SGE, off uint32) *transport.Fault {
	return eachSGE(q.pd, dst, sg, off, 0, func(local, packet []byte) { fetch(packet, local) })
}

// Scatter implements transport.Host.
func (q *qp) Scatter(sg []verbs.SGE, off uint32, src []byte) *transport.Fault {
	return eachSGE(q.pd, src, sg, off, verbs.AccessLocalWrite, place)
}

// ScatterRecv implements transport.Host.
func (q *qp) ScatterRecv(w *transport.RecvWQE, off uint32, src []byte) *transport.Fault {
	p := q.pd
	if q.srq != nil {
		p = q.srq.pd
	}
	return eachSGE(p, src, w.SGList, off, verbs.AccessLocalWrite, place)
}

// eachSGE walks through the pieces of sg that the packet's bytes stand for.
func eachSGE(p *pd, packet []byte, sg []verbs.SGE, off uint32, need verbs.Access, do func(local, packet []byte)) *transport.Fault {
	for i := range sg {
		if len(packet) == 0 {
			return nil
		}
		s := &sg[i]
		if off >= s.Length {
			off -= s.Length
			continue
		}
		n := min(int(s.Length-off), len(packet))
		m, b, err := p.dev.lookup(p, uint32(s.LKey), s.Addr+uint64(off), uint32(n), need)
		if err != nil {
			return &transport.Fault{Status: verbs.WCLocProtErr, Cause: verbs.Errorf(err, "SGE %d: %v", i, err)}
		}
		do(b, packet[:n])
		m.release()
		packet, off = packet[n:], 0
	}
	return nil
}

// remote is lookup for a peer's request.
func (q *qp) remote(key verbs.RKey, va uint64, n uint32, need verbs.Access) (*mr, []byte, *transport.Fault) {
	var m *mr
	var b []byte
	var err error
	if e := q.dev.mrs.get(uint32(key) >> keyBits); e != nil && e.window != nil {
		m, b, err = e.window.open(q, uint32(key), va, n, need)
	} else {
		m, b, err = q.dev.lookup(q.pd, uint32(key), va, n, need)
	}
	if err != nil {
		return nil, nil, &transport.Fault{Status: verbs.WCRemAccessErr, Cause: err}
	}
	return m, b, nil
}

// CheckRemote implements transport.Host.
func (q *qp) CheckRemote(key verbs.RKey, va uint64, length uint32, need verbs.Access) *transport.Fault {
	m, _, f := q.remote(key, va, length, need)
	if f == nil {
		m.release()
	}
	return f
}

// ReadRemote implements transport.Host.
func (q *qp) ReadRemote(dst []byte, key verbs.RKey, va uint64) *transport.Fault {
	m, b, f := q.remote(key, va, uint32(len(dst)), verbs.AccessRemoteRead)
	if f == nil {
		fetch(dst, b)
		m.release()
	}
	return f
}

// WriteRemote implements transport.Host.
func (q *qp) WriteRemote(key verbs.RKey, va uint64, src []byte) *transport.Fault {
	m, b, f := q.remote(key, va, uint32(len(src)), verbs.AccessRemoteWrite)
	if f == nil {
		place(b, src)
		m.release()
	}
	return f
}

// CompareSwap implements transport.Host with the CPU's own instruction, so that it is atomic
// against the program too.
func (q *qp) CompareSwap(key verbs.RKey, va uint64, compare, swap uint64) (orig uint64, f *transport.Fault) {
	f = q.atomic(key, va, func(p *uint64) {
		for {
			if orig = atomic.LoadUint64(p); orig != compare || atomic.CompareAndSwapUint64(p, compare, swap) {
				return
			}
		}
	})
	return orig, f
}

// FetchAdd implements transport.Host.
func (q *qp) FetchAdd(key verbs.RKey, va uint64, add uint64) (orig uint64, f *transport.Fault) {
	f = q.atomic(key, va, func(p *uint64) { orig = atomic.AddUint64(p, add) - add })
	return orig, f
}

func (q *qp) atomic(key verbs.RKey, va uint64, do func(*uint64)) *transport.Fault {
	m, b, f := q.remote(key, va, 8, verbs.AccessRemoteAtomic)
	if f != nil {
		return f
	}
	defer m.release()
	p := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(p)%8 != 0 {
		return &transport.Fault{Status: verbs.WCRemAccessErr, Cause: verbs.Errorf(verbs.ErrInvalid,
			"key %#08x: the memory at va %#x is not aligned to 8 bytes: register aligned memory for atomics", uint32(key), va)}
	}
	do((*uint64)(p))
	return nil
}

// place copies src to dst, which is as long. The last aligned word of dst is stored last and
// atomically: who polls it with an atomic load and sees it change sees all the rest.
func place(dst, src []byte) {
	p := unsafe.Pointer(unsafe.SliceData(dst))
	end := int((uintptr(p) + uintptr(len(dst))) % 8)
	if at := len(dst) - end - 8; at >= 0 {
		copy(dst[:at], src)
		copy(dst[at+8:], src[at+8:])
		atomic.StoreUint64((*uint64)(unsafe.Add(p, at)), binary.NativeEndian.Uint64(src[at:]))
		return
	}
	if at := len(dst) - end%4 - 4; at >= 0 {
		copy(dst[:at], src)
		copy(dst[at+4:], src[at+4:])
		atomic.StoreUint32((*uint32)(unsafe.Add(p, at)), binary.NativeEndian.Uint32(src[at:]))
		return
	}
	copy(dst, src)
}

// fetch copies src to dst, which is as long. A single aligned word is loaded atomically: a program
// may be counting in it.
func fetch(dst, src []byte) {
	p := unsafe.Pointer(unsafe.SliceData(src))
	switch {
	case len(src) == 8 && uintptr(p)%8 == 0:
		binary.NativeEndian.PutUint64(dst, atomic.LoadUint64((*uint64)(p)))
	case len(src) == 4 && uintptr(p)%4 == 0:
		binary.NativeEndian.PutUint32(dst, atomic.LoadUint32((*uint32)(p)))
	default:
		copy(dst, src)
	}
}

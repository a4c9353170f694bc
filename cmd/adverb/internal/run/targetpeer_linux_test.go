//go:build amd64 || arm64

package run

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/verbs"
)

// contact is an end's message to the other.
type contact struct {
	qpn, rkey uint32
	addr      uint64
}

func (c contact) String() string { return fmt.Sprintf("%d %d %d", c.qpn, c.rkey, c.addr) }

func parseContact(line string) (c contact, err error) {
	_, err = fmt.Sscan(line, &c.qpn, &c.rkey, &c.addr)
	return c, err
}

// The memory of an end: what it writes and where it is written to.
const (
	peerMemory  = 1 << 16
	peerMessage = 1 << 13
)

// targetPeer has a QP write to that of another program, without end. It prints the contact of its QP. A line of its input is
// that of the other program: it then says "connected". After another line it writes. It says "running" once a WRITE has
// completed, and "ended" with the status of the completion that fails. Then it begins anew. It ends with its input, at any
// time.
func targetPeer() error {
	k, pd, err := openKernel()
	if err != nil {
		return err
	}
	memory, err := unix.Mmap(-1, 0, peerMemory, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	var mr uapi.RegMRResp
	if err := k.invoke(uapi.CmdRegMR, uapi.RegMR{Start: address(memory), Length: peerMemory, HCAVA: address(memory), PDHandle: pd.PDHandle, AccessFlags: 3}, &mr); err != nil {
		return err
	}
	lines := make(chan string)
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			lines <- in.Text()
		}
		os.Exit(0)
	}()
	for {
		w, err := k.newWriter(pd, mr, address(memory))
		if err != nil {
			return err
		}
		fmt.Println(contact{w.qp.QPN, mr.RKey, address(memory)})
		to, err := parseContact(<-lines)
		if err != nil {
			return err
		}
		if err := w.connect(to); err != nil {
			return err
		}
		fmt.Println("connected")
		<-lines
		if err := w.writeTo(to); err != nil {
			return err
		}
		if err := w.close(); err != nil {
			return err
		}
	}
}

// openKernel opens the device and allocates a PD.
func openKernel() (k kernel, pd uapi.AllocPDResp, err error) {
	if k.fd, err = unix.Open("/dev/infiniband/uverbs0", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return k, pd, err
	}
	if err := k.write(uapi.CmdGetContext, uapi.GetContext{}, nil, &uapi.GetContextResp{}, nil); err != nil {
		return k, pd, err
	}
	return k, pd, k.invoke(uapi.CmdAllocPD, uapi.AllocPD{}, &pd)
}

// writer is a QP with its CQ.
type writer struct {
	k        kernel
	cq       uapi.CreateCQResp
	qp       uapi.CreateQPResp
	ring, sq []byte
	lkey     uint32
	from     uint64
}

func (k kernel) newWriter(pd uapi.AllocPDResp, mr uapi.RegMRResp, from uint64) (*writer, error) {
	w := &writer{k: k, lkey: mr.LKey, from: from}
	var mi uapi.RxeCreateCQResp
	if err := k.write(uapi.CmdCreateCQ, uapi.CreateCQ{CQE: 15, CompChannel: -1}, nil, &w.cq, &mi); err != nil {
		return nil, err
	}
	var queues uapi.RxeCreateQPResp
	in := uapi.CreateQP{PDHandle: pd.PDHandle, SendCQHandle: w.cq.CQHandle, RecvCQHandle: w.cq.CQHandle, MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, QPType: uint8(verbs.QPTypeRC)}
	if err := k.write(uapi.CmdCreateQP, in, nil, &w.qp, &queues); err != nil {
		return nil, err
	}
	var err error
	if w.ring, err = unix.Mmap(k.fd, int64(mi.MI.Offset), int(mi.MI.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, err
	}
	w.sq, err = unix.Mmap(k.fd, int64(queues.SQMI.Offset), int(queues.SQMI.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return w, err
}

func (w *writer) close() error {
	return errors.Join(unix.Munmap(w.ring), unix.Munmap(w.sq),
		w.k.write(uapi.CmdDestroyQP, uapi.DestroyQP{QPHandle: w.qp.QPHandle}, nil, &uapi.DestroyQPResp{}, nil),
		w.k.write(uapi.CmdDestroyCQ, uapi.DestroyCQ{CQHandle: w.cq.CQHandle}, nil, &uapi.DestroyCQResp{}, nil))
}

// connect brings the QP to RTS. A packet is repeated 7 times, each after 67 ms at least, so that a busy machine ends no QP.
func (w *writer) connect(to contact) error {
	var gid [16]byte
	copy(gid[10:], []byte{0xff, 0xff, 127, 0, 0, 1})
	for _, m := range []uapi.ModifyQP{
		{AttrMask: uint32(verbs.MaskState | verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccessFlags), QPState: 1, PortNum: 1, QPAccessFlags: 3},
		{AttrMask: uint32(verbs.MaskState | verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPN | verbs.MaskRQPSN | verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer), QPState: 2,
			Dest: uapi.QPDest{DGID: gid, IsGlobal: 1, HopLimit: 64, PortNum: 1}, PathMTU: 3, DestQPNum: to.qpn, MaxDestRdAtomic: 1, MinRNRTimer: 1},
		{AttrMask: uint32(verbs.MaskState | verbs.MaskTimeout | verbs.MaskRetryCnt | verbs.MaskRNRRetry | verbs.MaskSQPSN | verbs.MaskMaxRDAtomic), QPState: 3, Timeout: 14, RetryCnt: 7, RNRRetry: 3, MaxRdAtomic: 1},
	} {
		m.QPHandle = w.qp.QPHandle
		if err := w.k.write(uapi.CmdModifyQP, m, nil, nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// writeTo writes until a completion fails.
func (w *writer) writeTo(to contact) error {
	for n := uint32(0); ; n++ {
		status, err := w.write(n, to, peerMessage)
		if err != nil {
			return err
		}
		if status != 0 {
			fmt.Println("ended", status)
			return nil
		}
		if n == 0 {
			fmt.Println("running")
		}
	}
}

// write is the n-th WRITE, to the second half of the memory of the other end. It waits for the completion.
func (w *writer) write(n uint32, to contact, length uint32) (verbs.WCStatus, error) {
	ne := binary.NativeEndian
	mask := ne.Uint32(w.sq[uapi.QueueMask:])
	size := 1 << ne.Uint32(w.sq[uapi.QueueElemSize:])
	wcMask := ne.Uint32(w.ring[uapi.QueueMask:])
	wcSize := 1 << ne.Uint32(w.ring[uapi.QueueElemSize:])
	e := w.sq[uapi.QueueData+int(n&mask)*size:]
	ne.PutUint64(e, uint64(n))
	ne.PutUint32(e[12:], uint32(verbs.OpRDMAWrite))
	ne.PutUint32(e[16:], uint32(verbs.SendSignaled))
	ne.PutUint64(e[24:], to.addr+peerMemory/2)
	ne.PutUint32(e[32:], to.rkey)
	ne.PutUint32(e[184:], length)
	ne.PutUint32(e[196:], 1)
	copy(e[uapi.SendWQESize:], uapi.Append(nil, uapi.SGE{Addr: w.from, Length: length, LKey: w.lkey}))
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&w.sq[uapi.QueueProducer])), (n+1)&mask)
	bell := uapi.Append(uapi.Append(nil, uapi.Header{Command: uint32(uapi.CmdPostSend), InWords: uapi.PostSendSize / 4, OutWords: 1}), uapi.PostSend{QPHandle: w.qp.QPHandle})
	if _, err := unix.Write(w.k.fd, bell); err != nil && !errors.Is(err, unix.EINTR) {
		return 0, fmt.Errorf("doorbell: %w", err)
	}
	for atomic.LoadUint32((*uint32)(unsafe.Pointer(&w.ring[uapi.QueueProducer])))&wcMask == n&wcMask {
		_, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) // the end of the test ends a wait without end
	}
	var wc uapi.WC
	if err := uapi.Decode(w.ring[uapi.QueueData+int(n&wcMask)*wcSize:], &wc); err != nil {
		return 0, err
	}
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&w.ring[uapi.QueueConsumer])), (n+1)&wcMask)
	return verbs.WCStatus(wc.Status), nil
}

// targetOnDemand writes to memory of its own that is registered on demand: what is mapped at the time of a WRITE gets the
// data, and a WRITE to what is not mapped fails.
func targetOnDemand() error {
	k, pd, err := openKernel()
	if err != nil {
		return err
	}
	memory, err := unix.Mmap(-1, 0, 2*peerMemory, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	source, at := memory[:peerMemory], unsafe.Pointer(&memory[peerMemory])
	mapped := func(prot int) ([]byte, error) { // pages that are zero
		p, err := unix.MmapPtr(-1, 0, at, peerMemory, prot, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_FIXED)
		return unsafe.Slice((*byte)(p), peerMemory), err
	}
	// Another mapping must not take the place meanwhile. So pages without access stand for none.
	unmapped := func() error { _, err := mapped(unix.PROT_NONE); return err }
	var from, to uapi.RegMRResp
	if err := k.invoke(uapi.CmdRegMR, uapi.RegMR{Start: address(source), Length: peerMemory, HCAVA: address(source), PDHandle: pd.PDHandle, AccessFlags: 1}, &from); err != nil {
		return err
	}
	if err := unmapped(); err != nil {
		return err
	}
	addr := uint64(uintptr(at))
	if err := k.invoke(uapi.CmdRegMR, uapi.RegMR{Start: addr, Length: peerMemory, HCAVA: addr, PDHandle: pd.PDHandle, AccessFlags: uint32(verbs.AccessOnDemand) | 3}, &to); err != nil {
		return fmt.Errorf("register memory that is not mapped yet: %w", err)
	}
	x, err := k.newWriter(pd, from, address(source))
	if err != nil {
		return err
	}
	y, err := k.newWriter(pd, from, address(source))
	if err != nil {
		return err
	}
	if err := errors.Join(x.connect(contact{qpn: y.qp.QPN}), y.connect(contact{qpn: x.qp.QPN})); err != nil {
		return err
	}
	const n = 100
	for i := range uint32(3) {
		b, err := mapped(unix.PROT_READ | unix.PROT_WRITE)
		if err != nil {
			return err
		}
		for j := range n {
			source[j] = byte(i) + 1
		}
		sges := uapi.Append(nil, uapi.SGE{Addr: addr, Length: peerMemory, LKey: to.LKey})
		advice := uapi.Append(uapi.Append(nil, uapi.IoctlHeader{Length: uapi.IoctlHeaderSize + 4*uapi.AttrSize, ObjectID: uapi.ObjectMR, MethodID: uapi.MethodAdviseMR, NumAttrs: 4}),
			[]uapi.Attr{{AttrID: uapi.AttrAdvisePD, Data: uint64(pd.PDHandle)}, {AttrID: uapi.AttrAdviseAdvice, Len: 8, Data: uapi.AdvisePrefetchWrite},
				{AttrID: uapi.AttrAdviseFlags, Len: 4, Data: uapi.AdviseFlush}, {AttrID: uapi.AttrAdviseSGEs, Len: uint16(len(sges)), Data: address(sges)}})
		if err := k.ioctl(advice); err != nil {
			return fmt.Errorf("prefetch: %w", err)
		}
		runtime.KeepAlive(sges)
		status, err := x.write(i, contact{rkey: to.RKey, addr: addr}, n)
		if err != nil || status != 0 {
			return fmt.Errorf("WRITE %d: %v, %w", i, status, err)
		}
		if got := b[peerMemory/2+n-1]; got != byte(i)+1 {
			return fmt.Errorf("WRITE %d: got %d in the memory that is mapped now, want %d", i, got, i+1)
		}
	}
	if err := unmapped(); err != nil {
		return err
	}
	if status, err := x.write(3, contact{rkey: to.RKey, addr: addr}, n); err != nil || status == 0 {
		return fmt.Errorf("a WRITE to memory that is not mapped: %v, %w, want an error", status, err)
	}
	return nil
}

//go:build amd64 || arm64

package run

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/verbs"
)

// target is a program that runs under adverb run, as libibverbs and librdmacm would have it do.
func target(what string, args ...string) int {
	var err error
	switch what {
	case "verbs":
		err = targetVerbs()
	case "confined":
		err = targetConfined(args[0], args[1:])
	case "native":
		err = targetNative()
	case "netlink":
		err = targetNetlink()
	case "on demand":
		err = targetOnDemand()
	case "peer":
		err = targetPeer()
	case "mapped", "copied":
		if err = targetVerbs(); err == nil {
			err = targetMemory(what == "mapped")
		}
	case "cm":
		err = targetCM()
	case "manager":
		err = targetManager()
	default:
		err = fmt.Errorf("no such target: %s", what)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "target:", err)
		return 1
	}
	fmt.Println("done")
	return 0
}

// kernel is an open uverbs device, as a program has it.
type kernel struct{ fd int }

// write gives a command of the older form.
func (k kernel) write(n uapi.CommandNumber, in, driverIn, out, driverOut any) error {
	resp := make([]byte, size(out)+size(driverOut))
	body := uapi.Append(nil, in)
	if len(resp) > 0 {
		binary.NativeEndian.PutUint64(body, address(resp))
	}
	if driverIn != nil {
		body = uapi.Append(body, driverIn)
	}
	b := append(uapi.Append(nil, uapi.Header{Command: uint32(n), InWords: uint16((8 + len(body)) / 4), OutWords: uint16(len(resp) / 4)}), body...)
	if _, err := unix.Write(k.fd, b); err != nil {
		return fmt.Errorf("command %d: %w", n, err)
	}
	return decode(resp, out, driverOut)
}

// invoke gives a command by INVOKE_WRITE.
func (k kernel) invoke(n uapi.CommandNumber, in, out any) error {
	resp, body := make([]byte, size(out)), uapi.Append(nil, in)
	attrs := []uapi.Attr{{AttrID: uapi.AttrWriteCmd, Len: 4, Flags: uapi.AttrMandatory, Data: uint64(n)},
		{AttrID: uapi.AttrCoreIn, Len: uint16(len(body)), Data: address(body)}, {AttrID: uapi.AttrCoreOut, Len: uint16(len(resp)), Data: address(resp)}}
	b := uapi.Append(nil, uapi.IoctlHeader{Length: uint16(uapi.IoctlHeaderSize + uapi.AttrSize*len(attrs)), NumAttrs: uint16(len(attrs))})
	b = uapi.Append(b, attrs)
	if err := k.ioctl(b); err != nil {
		return fmt.Errorf("command %d by ioctl: %w", n, err)
	}
	runtime.KeepAlive(body)
	return decode(resp, out, nil)
}

func (k kernel) ioctl(b []byte) error {
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(k.fd), uapi.IoctlVerbs, uintptr(unsafe.Pointer(&b[0]))); e != 0 {
		return e
	}
	return nil
}

func size(v any) int {
	if v == nil {
		return 0
	}
	return binary.Size(v)
}

func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

func decode(b []byte, out, driver any) error {
	if out != nil {
		if err := uapi.Decode(b, out); err != nil {
			return err
		}
		b = b[size(out):]
	}
	if driver != nil {
		return uapi.Decode(b, driver)
	}
	return nil
}

// targetVerbs has a QP of its own write to another of its own.
func targetVerbs() error {
	fd, err := unix.Open("/dev/infiniband/uverbs0", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	k := kernel{fd}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || unix.Major(st.Rdev) != 231 {
		return fmt.Errorf("fstat: mode %#o, device %d, %v: want a character device of 231", st.Mode, unix.Major(st.Rdev), err)
	}
	probe := uapi.Append(nil, uapi.IoctlHeader{Length: uapi.IoctlHeaderSize + uapi.AttrSize, NumAttrs: 1})
	probe = uapi.Append(probe, uapi.Attr{AttrID: uapi.AttrWriteCmd, Len: 4, Data: uint64(uapi.CmdQueryDevice)})
	if err := k.ioctl(probe); err != unix.ENOSPC {
		return fmt.Errorf("INVOKE_WRITE without input: got %v, want ENOSPC, by which libibverbs knows the method", err)
	}
	if err := k.ioctl(uapi.Append(nil, uapi.IoctlHeader{Length: uapi.IoctlHeaderSize, MethodID: uapi.MethodQueryPort})); err != unix.EPROTONOSUPPORT {
		return fmt.Errorf("a method that is not there: got %v, want EPROTONOSUPPORT", err)
	}
	var ctx uapi.GetContextResp
	if err := k.write(uapi.CmdGetContext, uapi.GetContext{}, nil, &ctx, nil); err != nil {
		return err
	}
	if err := unix.SetNonblock(int(ctx.AsyncFD), true); err != nil {
		return err
	}
	if _, err := unix.Read(int(ctx.AsyncFD), make([]byte, 16)); err != unix.EAGAIN {
		return fmt.Errorf("read of events: got %v, want EAGAIN", err)
	}
	var pd uapi.AllocPDResp
	if err := k.invoke(uapi.CmdAllocPD, uapi.AllocPD{}, &pd); err != nil {
		return err
	}
	memory, err := unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	var mr uapi.RegMRResp
	if err := k.invoke(uapi.CmdRegMR, uapi.RegMR{Start: address(memory), Length: 1 << 16, HCAVA: address(memory), PDHandle: pd.PDHandle, AccessFlags: 3}, &mr); err != nil {
		return err
	}
	var none uapi.RegMRResp
	if err := k.invoke(uapi.CmdRegMR, uapi.RegMR{Start: 4096, Length: 4096, HCAVA: 4096, PDHandle: pd.PDHandle, AccessFlags: 1}, &none); !errors.Is(err, unix.EFAULT) {
		return fmt.Errorf("registering memory that is not there: got %v, want EFAULT", err)
	}
	var (
		cq uapi.CreateCQResp
		mi uapi.RxeCreateCQResp
	)
	if err := k.write(uapi.CmdCreateCQ, uapi.CreateCQ{CQE: 15, CompChannel: -1}, nil, &cq, &mi); err != nil {
		return err
	}
	ring, err := unix.Mmap(fd, int64(mi.MI.Offset), int(mi.MI.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	var qps [2]uapi.CreateQPResp
	var queues [2]uapi.RxeCreateQPResp
	for i := range qps {
		in := uapi.CreateQP{PDHandle: pd.PDHandle, SendCQHandle: cq.CQHandle, RecvCQHandle: cq.CQHandle, MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1, QPType: uint8(verbs.QPTypeRC)}
		if err := k.write(uapi.CmdCreateQP, in, nil, &qps[i], &queues[i]); err != nil {
			return err
		}
	}
	var gid [16]byte
	copy(gid[10:], []byte{0xff, 0xff, 127, 0, 0, 1})
	for i, q := range qps {
		for _, m := range []uapi.ModifyQP{
			{AttrMask: uint32(verbs.MaskState | verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccessFlags), QPState: 1, PortNum: 1, QPAccessFlags: 3},
			{AttrMask: uint32(verbs.MaskState | verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPN | verbs.MaskRQPSN | verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer), QPState: 2,
				Dest: uapi.QPDest{DGID: gid, IsGlobal: 1, HopLimit: 64, PortNum: 1}, PathMTU: 3, DestQPNum: qps[1-i].QPN, MaxDestRdAtomic: 1, MinRNRTimer: 1},
			{AttrMask: uint32(verbs.MaskState | verbs.MaskTimeout | verbs.MaskRetryCnt | verbs.MaskRNRRetry | verbs.MaskSQPSN | verbs.MaskMaxRDAtomic), QPState: 3, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: 1},
		} {
			m.QPHandle = q.QPHandle
			if err := k.write(uapi.CmdModifyQP, m, nil, nil, nil); err != nil {
				return err
			}
		}
	}
	text := copy(memory, "through the supervisor")
	sq, err := unix.Mmap(fd, int64(queues[0].SQMI.Offset), int(queues[0].SQMI.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	e := sq[uapi.QueueData:]
	ne := binary.NativeEndian
	ne.PutUint64(e, 77)
	ne.PutUint32(e[12:], uint32(verbs.OpRDMAWrite))
	ne.PutUint32(e[16:], uint32(verbs.SendSignaled))
	ne.PutUint64(e[24:], address(memory)+8192)
	ne.PutUint32(e[32:], mr.RKey)
	ne.PutUint32(e[184:], uint32(text))
	ne.PutUint32(e[196:], 1)
	copy(e[uapi.SendWQESize:], uapi.Append(nil, uapi.SGE{Addr: address(memory), Length: uint32(text), LKey: mr.LKey}))
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&sq[uapi.QueueProducer])), 1)
	bell := uapi.Append(uapi.Append(nil, uapi.Header{Command: uint32(uapi.CmdPostSend), InWords: uapi.PostSendSize / 4, OutWords: 1}), uapi.PostSend{QPHandle: qps[0].QPHandle})
	if _, err := unix.Write(fd, bell); err != nil {
		return fmt.Errorf("doorbell: %w", err)
	}
	for end := time.Now().Add(20 * time.Second); atomic.LoadUint32((*uint32)(unsafe.Pointer(&ring[uapi.QueueProducer]))) == 0; {
		if time.Now().After(end) {
			return errors.New("no completion came")
		}
	}
	var wc uapi.WC
	if err := uapi.Decode(ring[uapi.QueueData:], &wc); err != nil || wc.WRID != 77 || wc.Status != 0 {
		return fmt.Errorf("got completion %d with %v, %v, want 77 with success", wc.WRID, verbs.WCStatus(wc.Status), err)
	}
	if got := string(memory[8192 : 8192+text]); got != string(memory[:text]) {
		return fmt.Errorf("written: %q, want %q", got, memory[:text])
	}
	return nil
}

// targetMemory checks whether memory was mapped.
func targetMemory(want bool) error {
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	if got := bytes.Contains(b, []byte("/memfd:adverb-memory")); got != want {
		return fmt.Errorf("mapped memory: %v, want %v:\n%s", got, want, b)
	}
	return nil
}

// targetCM makes an ID, and asks for an event that there is not.
func targetCM() error {
	fd, err := unix.Open("/dev/infiniband/rdma_cm", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	write := func(cmd int, in any, out any) error {
		resp := make([]byte, size(out))
		body := uapi.Append(nil, in)
		at := 0
		if cmd == uapi.CMCreateID {
			at = 8 // behind the program's name for it
		}
		binary.NativeEndian.PutUint64(body[at:], address(resp))
		b := append(uapi.Append(nil, uapi.CMHeader{Cmd: uint32(cmd), In: uint16(len(body)), Out: uint16(len(resp))}), body...)
		if _, err := unix.Write(fd, b); err != nil {
			return err
		}
		return uapi.Decode(resp, out)
	}
	var id uapi.CMCreateResp
	if err := write(uapi.CMCreateID, uapi.CMCreate{PS: uapi.PSTCP, QPType: uint8(verbs.QPTypeRC)}, &id); err != nil {
		return fmt.Errorf("create an ID: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return err
	}
	if err := write(uapi.CMGetEvent, uapi.CMGetEventArg{}, &uapi.CMEventResp{}); err != unix.EAGAIN {
		return fmt.Errorf("get an event: got %v, want EAGAIN", err)
	}
	var gone uapi.CMDestroyResp
	if err := write(uapi.CMDestroyID, uapi.CMDestroy{ID: id.ID}, &gone); err != nil {
		return fmt.Errorf("destroy the ID: %w", err)
	}
	return nil
}

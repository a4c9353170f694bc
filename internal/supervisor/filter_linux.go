//go:build amd64 || arm64

package supervisor

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Filter has the rules of a target's filter beside the paths and the descriptors of devices.
type Filter struct {
	// NativeWrite, where it is not zero, is the length of writes that go to the injected descriptor itself, and not
	// to File.Write: a doorbell that the supervisor sees in the file. It holds for nodes that ask for it.
	NativeWrite uint32
	// Ioctls are requests that are notified on any descriptor, so that copies outside of the range work too: those
	// that dup2 put there, and those that came by SCM_RIGHTS.
	Ioctls []uint32
	// Map has the calls notified that Config.Map needs to know of.
	Map bool
	// Rules are heeded in their order, before all else.
	Rules []Rule
}

// A Rule answers a system call, or has it notified.
type Rule struct {
	Number uint32 // of the system call on this architecture: unix.SYS_…
	If     []Arg  // all of them must hold
	Errno  unix.Errno
	Notify bool // give the call to Config.Other, and do not fail it with Errno
}

// Arg holds of a call whose argument has Value in the bits of Mask. Only the low 32 bits are looked at.
type Arg struct {
	Index       int
	Mask, Value uint32
}

const (
	// rangeSize is how many numbers of descriptors the filter watches.
	rangeSize = 64
	// rangeTop is where the range ends, if the limit of open files allows it. select(2) knows no higher numbers.
	rangeTop = 1024
	// nativeSize is how many numbers, at the begin of the range, are for nodes that ask for native writes.
	nativeSize = rangeSize / 2
)

// Offsets in struct seccomp_data. An argument is in the processor's byte order, and both architectures are little endian.
const (
	dataNumber = 0
	dataArch   = 4
	dataArgs   = 16
)

func low(arg int) uint32 { return uint32(dataArgs + 8*arg) }

// program is a filter in the making: instructions of classic BPF.
type program []unix.SockFilter

func (p *program) load(offset uint32) { p.add(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, offset, 0, 0) }
func (p *program) ret(value uint32)   { p.add(unix.BPF_RET|unix.BPF_K, value, 0, 0) }
func (p *program) add(code uint16, k uint32, yes, no uint8) {
	*p = append(*p, unix.SockFilter{Code: code, K: k, Jt: yes, Jf: no})
}

// unless runs body where the jump's test fails. The test jumps over the body where it holds.
func (p *program) unless(test uint16, k uint32, body func(*program)) {
	var b program
	body(&b)
	p.add(unix.BPF_JMP|unix.BPF_K|test, k, jump(b), 0)
	*p = append(*p, b...)
}

// when runs body where the jump's test holds.
func (p *program) when(test uint16, k uint32, body func(*program)) {
	var b program
	body(&b)
	p.add(unix.BPF_JMP|unix.BPF_K|test, k, 0, jump(b))
	*p = append(*p, b...)
}

// jump is the distance over a body. No body of a valid filter is longer than a jump is wide; compile checks it.
func jump(body program) uint8 { return uint8(min(len(body), 255)) }

func allow(p *program)  { p.ret(unix.SECCOMP_RET_ALLOW) }
func notify(p *program) { p.ret(unix.SECCOMP_RET_USER_NOTIF) }

// compile makes the filter, for a range of descriptors that begins at base.
func (f *Filter) compile(base uint32) ([]unix.SockFilter, error) {
	var p program
	p.load(dataArch)
	p.unless(unix.BPF_JEQ, nativeArch, allow)
	p.load(dataNumber)
	if foreignBit != 0 {
		p.when(unix.BPF_JGE, foreignBit, allow)
	}
	for _, r := range f.Rules {
		if err := r.check(); err != nil {
			return nil, err
		}
		p.when(unix.BPF_JEQ, r.Number, func(b *program) {
			r.compile(b, r.If)
			b.load(dataNumber) // for those that come after, where the rule does not hold
		})
	}
	for _, c := range calls {
		p.when(unix.BPF_JEQ, c.number, func(b *program) {
			if c.op.onDescriptor() {
				f.onDescriptor(b, c.op, base)
				allow(b)
				return
			}
			notify(b)
		})
	}
	if f.Map {
		for _, c := range mapCalls {
			p.when(unix.BPF_JEQ, c.number, func(b *program) { mapCall(b, c.op) })
		}
	}
	allow(&p)
	if len(p) > 4096 || len(f.Ioctls) > 32 {
		return nil, fmt.Errorf("compile the filter: %d instructions and %d ioctls, and a filter has at most 4096 and 32: give fewer rules", len(p), len(f.Ioctls))
	}
	return p, nil
}

// mapCall notifies a call if it can be one that does not do to replaced pages what it does to others.
func mapCall(p *program, o op) {
	switch o {
	case opClone:
		p.load(low(0)) // the flags
		p.add(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, unix.CLONE_VM, 0, 0)
		p.when(unix.BPF_JEQ, 0, notify)
		allow(p)
	case opMadvise:
		p.load(low(2))
		for _, advice := range []uint32{adviceDontNeed, adviceFree, adviceRemove, adviceDontNeedLocked} {
			p.when(unix.BPF_JEQ, advice, notify)
		}
		allow(p)
	default:
		notify(p)
	}
}

// onDescriptor notifies a call whose descriptor is in the range. Else it runs through.
func (f *Filter) onDescriptor(p *program, o op, base uint32) {
	if o == opIoctl {
		p.load(low(1))
		for _, request := range f.Ioctls {
			p.when(unix.BPF_JEQ, request, notify)
		}
	}
	p.load(low(0))
	p.when(unix.BPF_JGE, base, func(b *program) {
		b.unless(unix.BPF_JGE, base+rangeSize, func(in *program) {
			switch o {
			case opFcntl:
				in.load(low(1))
				in.when(unix.BPF_JEQ, unix.F_DUPFD, notify)
				in.when(unix.BPF_JEQ, unix.F_DUPFD_CLOEXEC, notify)
				allow(in)
				return
			case opWrite:
				if f.NativeWrite != 0 {
					in.unless(unix.BPF_JGE, base+nativeSize, func(native *program) {
						native.load(low(2))
						native.when(unix.BPF_JEQ, f.NativeWrite, allow)
					})
				}
			}
			notify(in)
		})
	})
}

func (r *Rule) check() error {
	for _, a := range r.If {
		if a.Index < 0 || a.Index > 5 {
			return fmt.Errorf("compile the rule for system call %d: argument %d: a call has arguments 0 to 5", r.Number, a.Index)
		}
	}
	if len(r.If) > 6 {
		return fmt.Errorf("compile the rule for system call %d: %d conditions, at most 6", r.Number, len(r.If))
	}
	if !r.Notify && (r.Errno == 0 || r.Errno > 4095) {
		return fmt.Errorf("compile the rule for system call %d: errno %d: give one from 1 to 4095, or notify the call", r.Number, r.Errno)
	}
	return nil
}

// compile tests the conditions one inside the other.
func (r *Rule) compile(p *program, conditions []Arg) {
	if len(conditions) == 0 {
		if r.Notify {
			notify(p)
		} else {
			p.ret(unix.SECCOMP_RET_ERRNO | uint32(r.Errno))
		}
		return
	}
	a := conditions[0]
	p.load(low(a.Index))
	if a.Mask != ^uint32(0) {
		p.add(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, a.Mask, 0, 0)
	}
	p.when(unix.BPF_JEQ, a.Value, func(b *program) { r.compile(b, conditions[1:]) })
}

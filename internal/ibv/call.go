//go:build linux && (amd64 || arm64)

package ibv

import (
	"syscall"
	"unsafe"
)

// frame is one call of C: the function, its arguments, the result, and errno as the same thread has it behind the call. The
// calls of a chain of frames come one behind the other on one thread. Frames are in blocks. The assembly knows the offsets.
type frame struct {
	fn      uintptr
	args    [6]uintptr
	ret     uintptr
	errnoAt uintptr // __errno_location, or 0: errno does not count
	errno   uintptr
	next    Ref[frame] // carried out behind this one
}

// runtime_cgocall calls C on a stack of the thread's, and tells the scheduler. It does not allocate.
//
//go:linkname runtime_cgocall runtime.cgocall
//go:noescape
func runtime_cgocall(fn uintptr, arg unsafe.Pointer) int32

// callFrame is the address of the assembly that carries out a frame, and those that are chained to it.
var callFrame uintptr

// errnoLocation is C's function that says where a thread has its errno.
var errnoLocation uintptr

// call3 calls a function of up to three arguments that returns an int. errno does not count.
func (f *frame) call3(fn, a, b, c uintptr) int32 {
	f.fn, f.args[0], f.args[1], f.args[2], f.errnoAt = fn, a, b, c, 0
	runtime_cgocall(callFrame, unsafe.Pointer(f))
	return int32(f.ret)
}

// carryOut carries out a chain, whose first frame f is.
func (f *frame) carryOut() { runtime_cgocall(callFrame, unsafe.Pointer(f)) }

// function is a function of the library, or one of the table of a context.
type function struct {
	name string
	at   uintptr // 0 where it is missing
}

// call calls the function in the memory of s.
func (s *scratch) call(fn function, args ...uintptr) (uintptr, syscall.Errno) {
	f := s.frame
	*f = frame{fn: fn.at, errnoAt: errnoLocation}
	copy(f.args[:], args)
	runtime_cgocall(callFrame, unsafe.Pointer(f))
	return f.ret, syscall.Errno(f.errno)
}

// Error is the failure of a call of C. errors.Is finds its errno.
type Error struct {
	Call  string // such as "ibv_create_qp"
	Errno syscall.Errno
}

func (e *Error) Error() string { return e.Call + ": " + e.Errno.Error() }

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }

// missing is the error of a function that this library, or this device, does not have.
func missing(fn function) error {
	return &Error{Call: fn.name + " is missing", Errno: syscall.EOPNOTSUPP}
}

// pointer calls a function that returns a pointer, or null and errno.
func pointer[T any](s *scratch, fn function, args ...uintptr) (Ref[T], error) {
	if fn.at == 0 {
		return Ref[T]{}, missing(fn)
	}
	r, errno := s.call(fn, args...)
	if r == 0 {
		if errno == 0 {
			errno = syscall.EINVAL // some drivers fail without a word
		}
		return Ref[T]{}, &Error{fn.name, errno}
	}
	return Ref[T]{r}, nil
}

// status calls a function that returns 0, an errno, its negative, or -1 and errno: libibverbs has all of them.
func (s *scratch) status(fn function, args ...uintptr) error {
	if fn.at == 0 {
		return missing(fn)
	}
	r, errno := s.call(fn, args...)
	switch n := int32(r); {
	case n == 0:
		return nil
	case n > 0:
		errno = syscall.Errno(n)
	case n < -1 || errno == 0:
		errno = syscall.Errno(-n)
	}
	return &Error{fn.name, errno}
}

// once calls f with memory of its own.
func once(f func(*scratch) error) error {
	s, err := newScratch()
	if err != nil {
		return err
	}
	defer s.give()
	return f(s)
}

// made is once for a call that returns a pointer.
func made[T any](f func(*scratch) (Ref[T], error)) (r Ref[T], err error) {
	err = once(func(s *scratch) error {
		r, err = f(s)
		return err
	})
	return r, err
}

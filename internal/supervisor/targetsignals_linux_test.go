//go:build amd64 || arm64

package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// restarts sets whether calls that a signal interrupts are restarted.
func restarts(sig unix.Signal, on bool) {
	var action [4]uint64 // handler, flags, restorer, mask; on arm64 without the third
	get := func(set uintptr, old uintptr) {
		if _, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), set, old, 8, 0, 0); e != 0 {
			die("rt_sigaction: %v", e)
		}
	}
	get(0, uintptr(unsafe.Pointer(&action)))
	const saRestart = 0x10000000
	action[1] &^= saRestart
	if on {
		action[1] |= saRestart
	}
	get(uintptr(unsafe.Pointer(&action)), 0)
}

// until asks a device until it gives a number.
func until(fd int, request uintptr, number int) {
	for {
		n, err := ioctl(fd, request, 0)
		want("ask the toy", err, nil)
		if n == number {
			return
		}
		runtime.Gosched()
	}
}

func targetSignals([]string) {
	handled := make(chan os.Signal, 8)
	signal.Notify(handled, unix.SIGUSR1)
	type answer struct {
		n   int
		err error
	}
	fd := open(toyNode, unix.O_RDWR)
	wait := func() (tid int, result chan answer) {
		tids := make(chan int)
		result = make(chan answer)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			tids <- unix.Gettid()
			n, err := ioctl(fd, toyWait, 0)
			result <- answer{n, err}
		}()
		tid = <-tids
		until(fd, toyCount, 1)
		return tid, result
	}

	restarts(unix.SIGUSR1, false)
	tid, result := wait()
	want("tgkill", unix.Tgkill(os.Getpid(), tid, unix.SIGUSR1), nil)
	is("a call without SA_RESTART", <-result, answer{-1, unix.EINTR})
	<-handled
	until(fd, toyEnds, 1)

	restarts(unix.SIGUSR1, true)
	tid, result = wait()
	want("tgkill", unix.Tgkill(os.Getpid(), tid, unix.SIGUSR1), nil)
	<-handled
	until(fd, toyEnds, 2)
	until(fd, toyCount, 1)
	n, err := ioctl(fd, toyWake, 7)
	want("wake", err, nil)
	is("woken", n, 1)
	is("a call with SA_RESTART", <-result, answer{7, nil})

	// A signal that is ignored, and one that another thread handles.
	signal.Ignore(unix.SIGUSR2)
	tid, result = wait()
	want("tgkill", unix.Tgkill(os.Getpid(), tid, unix.SIGUSR2), nil)
	want("kill", unix.Kill(os.Getpid(), unix.SIGUSR1), nil)
	<-handled
	for woken := 0; woken == 0; { // the call that waits may be taken away by the second signal, and comes again
		woken, err = ioctl(fd, toyWake, 8)
		want("wake", err, nil)
	}
	is("a call after a signal that is ignored", <-result, answer{8, nil})
}

// targetWait waits in a device.
func targetWait([]string) {
	ioctl(open(toyNode, unix.O_RDWR), toyWait, 0)
}

// targetSleeper says which signals come, until SIGTERM.
func targetSleeper([]string) {
	c := make(chan os.Signal, 8)
	signal.Notify(c, unix.SIGINT, unix.SIGUSR1, unix.SIGTERM, unix.SIGWINCH)
	open(toyNode, unix.O_RDWR) // says that it is ready
	for sig := range c {
		fmt.Println(sig)
		open(toyNode, unix.O_RDWR)
		if sig == unix.SIGTERM {
			os.Exit(3)
		}
	}
}

// targetTerminal is a program on a terminal, which counts interrupts until it is told to end.
func targetTerminal([]string) {
	c := make(chan os.Signal, 8)
	signal.Notify(c, unix.SIGINT, unix.SIGUSR1)
	fmt.Println("ready")
	n := 0
	for sig := range c {
		if sig == unix.SIGUSR1 {
			break
		}
		n++
		fmt.Println("interrupt", n)
	}
	os.Exit(10 + n)
}

// targetSession is a shell's part, on a terminal: it runs a job in the foreground, and says how that stops and ends.
func targetSession(argv []string) {
	signal.Ignore(unix.SIGTTOU)
	cmd := exec.Command(os.Getenv("EXE"))
	cmd.Args = append([]string{"starter"}, argv...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Foreground: true, Ctty: 0}
	want("start the job", cmd.Start(), nil)
	pid := cmd.Process.Pid
	fmt.Println("job", pid)
	var ws unix.WaitStatus
	for {
		if _, err := unix.Wait4(pid, &ws, unix.WUNTRACED, nil); err != nil {
			die("wait: %v", err)
		}
		if !ws.Stopped() {
			fmt.Println("status", ws.ExitStatus())
			return
		}
		fmt.Println("stopped by", ws.StopSignal())
		want("foreground", unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, pid), nil)
		unix.Kill(-pid, unix.SIGCONT)
	}
}

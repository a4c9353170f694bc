package emulator

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	tunFile = "/dev/net/tun"

	// maxPacket is the longest packet of a TUN device.
	maxPacket = 1 << 16
	// batch is how many packets are read from one device before the other has its turn.
	batch = 64
	// stopPatience is for how long the thread sleeps at most. It then looks whether it was stopped.
	stopPatience = 10 * time.Millisecond
	// priority of the thread among those of the system that come first.
	priority = 10
)

// A Device is a TUN device. It disappears when it is closed.
type Device struct{ fd int }

// OpenDevice makes a TUN device in the thread's network namespace.
func OpenDevice(name string) (*Device, error) {
	fd, err := unix.Open(tunFile, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s (modprobe tun; in a container: add that device): %w", tunFile, err)
	}
	ifr, err := unix.NewIfreq(name)
	if err == nil {
		// Without IFF_VNET_HDR the kernel cuts trains and computes checksums before the packets come here.
		ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("make a TUN device: %w", err)
	}
	return &Device{fd}, nil
}

// Close closes the device.
func (d *Device) Close() error { return unix.Close(d.fd) }

// An Emulator carries packets between two devices.
type Emulator struct {
	devices    [2]*Device
	directions [2]*direction // from the device of that number
	delays     delays
	began      time.Time
	stop       atomic.Bool
	done       chan struct{}
	buf        []byte
}

// New makes a path between two devices. Run runs it.
func New(c Config, a, b *Device) *Emulator {
	return &Emulator{devices: [2]*Device{a, b}, directions: [2]*direction{newDirection(c, 0), newDirection(c, 1)},
		began: time.Now(), done: make(chan struct{}), buf: make([]byte, maxPacket)}
}

// Hurry has the thread run before all others, and timers wake it when they are due, as far as the system allows.
func Hurry() error {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: priority}, 0)
	return nil
}

func (e *Emulator) now() time.Duration { return time.Since(e.began) }

// Run carries packets until Stop, on the caller's thread. System calls are raw: the scheduler of Go takes nothing
// from a thread that comes back from them.
func (e *Emulator) Run() {
	defer close(e.done)
	for !e.stop.Load() {
		read := false
		for from := range e.directions {
			for range batch {
				if !e.read(from) {
					break
				}
				read = true
			}
		}
		if !read {
			e.sleep()
		}
	}
}

// read takes a packet from a device, if there is one. All that is due leaves first.
func (e *Emulator) read(from int) bool {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(e.devices[from].fd), uintptr(unsafe.Pointer(&e.buf[0])), uintptr(len(e.buf)))
	now := e.give()
	if errno != 0 {
		return false
	}
	e.directions[from].take(now, e.buf[:n])
	return true
}

// give writes all that is due.
func (e *Emulator) give() (now time.Duration) {
	now = e.now()
	for from, d := range e.directions {
		for packet, due := d.give(now); packet != nil; packet, due = d.give(now) {
			e.delays.add(e.now() - due)
			// A packet that the device does not take is lost, as where a host is down.
			_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(e.devices[1-from].fd), uintptr(unsafe.Pointer(&packet[0])), uintptr(len(packet)))
		}
	}
	return now
}

// sleep waits until a packet comes or is due.
func (e *Emulator) sleep() {
	wait := stopPatience
	for _, d := range e.directions {
		if due, ok := d.next(); ok {
			wait = min(wait, max(0, due-e.now()))
		}
	}
	fds := [2]unix.PollFd{{Fd: int32(e.devices[0].fd), Events: unix.POLLIN}, {Fd: int32(e.devices[1].fd), Events: unix.POLLIN}}
	ts := unix.NsecToTimespec(int64(wait))
	_, _, _ = unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds[0])), uintptr(len(fds)), uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
}

// Stop ends Run, and returns the counters of each direction and how late packets left.
func (e *Emulator) Stop() ([2]Stats, Lateness) {
	e.stop.Store(true)
	<-e.done
	return [2]Stats{e.directions[0].stats(), e.directions[1].stats()}, e.delays.lateness()
}

package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"syscall"

	"github.com/adverb-rdma/adverb/lab/agent"
)

// Host is this machine, as a member of the lab's network.
type Host struct {
	// Interface is the name of the network interface. The device is called soft_<Interface>.
	Interface string

	bin   string // the path of the tool adverb
	addr4 netip.Prefix
	addr6 netip.Prefix
}

func (h *Host) String() string { return "host" }

// Addr returns an address on the lab's network.
func (h *Host) Addr(v6 bool) netip.Addr {
	if v6 {
		return h.addr6.Addr()
	}
	return h.addr4.Addr()
}

// Device returns the name of a device whose only GID is that address. Its GID index is 0.
func (h *Host) Device(v6 bool) string {
	return fmt.Sprintf("soft_%s@%v", h.Interface, h.Addr(v6))
}

// Start runs a program. The program is killed when ctx ends. "adverb" is the tool of this module.
func (h *Host) Start(ctx context.Context, argv ...string) (*Process, error) {
	p := newProcess("host", argv)
	path := argv[0]
	if path == "adverb" {
		path = h.bin
	}
	cmd := exec.CommandContext(ctx, path, argv[1:]...)
	cmd.Args[0] = argv[0]
	cmd.Stdout, cmd.Stderr = &p.stdout, &p.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := spawn(cmd); err != nil {
		return nil, fmt.Errorf("start %v: %w", p, err)
	}
	p.signal = func(sig syscall.Signal) error { return syscall.Kill(-cmd.Process.Pid, sig) }
	go func() {
		defer close(p.done)
		p.status = agent.Wait(cmd)
	}()
	return p, nil
}

// AwaitTCP returns when a program listens on a TCP port.
func (h *Host) AwaitTCP(ctx context.Context, port int) error { return agent.AwaitTCP(ctx, port) }

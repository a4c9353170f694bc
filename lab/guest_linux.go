package lab

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/adverb-rdma/adverb/lab/agent"
)

const (
	guestMemory  = "768" // MiB
	guestCPUs    = "2"
	bootPatience = 3 * time.Minute // a boot takes 4 s, and several times that on a busy machine

	// After a guest was away for seconds, the host must look up its MAC address again.
	neighborPatience = 30 * time.Second
	neighborPause    = 50 * time.Millisecond

	accelEnv = "ADVERB_LAB_ACCEL"

	// machine is the newest machine type of Debian 12's QEMU. Later QEMUs have it too. With newer
	// types, trains of UDP packets reach the guest uncut, and a capture then shows trains in place
	// of packets.
	machine = "pc-q35-7.2"
)

// Guest is a virtual machine.
type Guest struct {
	// Device is the name of its RDMA device: rxe0 or siw0.
	Device string

	lab   *Lab
	name  string
	tap   string
	mac   string
	addr4 netip.Prefix
	addr6 netip.Prefix

	qemu    *exec.Cmd
	console *output
	gone    chan struct{} // closed when QEMU has ended
	gids    map[netip.Addr]int
}

func (g *Guest) String() string { return g.name }

// Addr returns an address on the lab's network.
func (g *Guest) Addr(v6 bool) netip.Addr {
	if v6 {
		return g.addr6.Addr()
	}
	return g.addr4.Addr()
}

// GIDIndex returns the index of an address in the GID table of the guest's device. Only rxe keeps
// addresses there.
func (g *Guest) GIDIndex(v6 bool) int { return g.gids[g.Addr(v6)] }

// Boot starts the guest, and returns when the guest is ready. After Kill, the guest may be booted
// again.
func (g *Guest) Boot(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, bootPatience, fmt.Errorf("not ready after %v", bootPatience))
	defer cancel()
	if err := g.launch(); err != nil {
		return fmt.Errorf("boot %v: %w", g, err)
	}
	err := g.awaitConsole(ctx, agent.Ready)
	if err == nil && len(g.gidAddrs()) > 0 {
		err = g.readGIDs(ctx)
	}
	if err != nil {
		g.Kill()
		return fmt.Errorf("boot %v: %w; its console says:\n%s", g, err, g.console)
	}
	return nil
}

// gidAddrs returns the addresses that the GID table must hold. An iWARP device's table holds none.
func (g *Guest) gidAddrs() []netip.Addr {
	if g.lab.cfg.Device == deviceSiw {
		return nil
	}
	return []netip.Addr{g.Addr(false), g.Addr(true)}
}

func (g *Guest) awaitConsole(ctx context.Context, text string) error {
	for {
		found, more := g.console.contains(text)
		if found {
			return nil
		}
		select {
		case <-more:
		case <-g.gone:
			return errors.New("QEMU has ended")
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// launch starts QEMU.
func (g *Guest) launch() error {
	accel := os.Getenv(accelEnv)
	if accel == "" {
		accel = "tcg,thread=multi" // emulation works everywhere; /dev/kvm may open and still not work
	}
	img := g.lab.img
	var gids []string
	for _, a := range g.gidAddrs() {
		gids = append(gids, sysfsGID(a))
	}
	kernelArgs := []string{
		"console=ttyS0", "quiet", "panic=-1", "nokaslr", "mitigations=off", "random.trust_cpu=on",
		"no_timer_check", // on a busy machine the emulated timer looks broken, and the kernel panics
		// The kernel passes parameters that it does not know to init, as environment variables.
		"LAB_ADDR4=" + g.addr4.String(), "LAB_ADDR6=" + g.addr6.String(), "LAB_MTU=" + strconv.Itoa(g.lab.cfg.MTU),
		"LAB_DEVICE=" + g.lab.cfg.Device,
		`"LAB_GIDS=` + strings.Join(gids, " ") + `"`,
	}
	// This is not the caller's context, because guests live until they are killed.
	qemu := img.command(context.Background(), "usr/bin/qemu-system-x86_64",
		"-L", filepath.Join(img.root, "usr/share/qemu"), "-L", filepath.Join(img.root, "usr/share/seabios"),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-M", machine,
		"-accel", accel, "-cpu", "qemu64,+rdrand", "-smp", guestCPUs, "-m", guestMemory,
		"-kernel", img.kernel, "-initrd", img.initrd(os.TempDir()), "-append", strings.Join(kernelArgs, " "),
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-netdev", "tap,id=net,ifname="+g.tap+",script=no,downscript=no,vhost=off",
		// Without a speed, the guest's kernel complains about the port every second.
		"-device", "virtio-net-pci,netdev=net,mac="+g.mac+",speed=10000,duplex=full,romfile=",
		"-fsdev", "local,id=deb,security_model=none,readonly=on,path="+img.root,
		"-device", "virtio-9p-pci,fsdev=deb,mount_tag=deb",
	)
	qemu.Env = append(os.Environ(), "QEMU_MODULE_DIR="+filepath.Join(img.root, "usr/lib/x86_64-linux-gnu/qemu"))
	console, gone := new(output), make(chan struct{})
	qemu.Stdout, qemu.Stderr = console, console
	if err := spawn(qemu); err != nil {
		return err
	}
	g.qemu, g.console, g.gone = qemu, console, gone
	go func() {
		qemu.Wait()
		close(gone)
	}()
	return nil
}

// alive reports whether QEMU runs.
func (g *Guest) alive() bool {
	if g.gone == nil { // never booted
		return false
	}
	select {
	case <-g.gone:
		return false
	default:
		return true
	}
}

// Kill ends the guest as a power failure does.
func (g *Guest) Kill() {
	if g.qemu != nil {
		g.qemu.Process.Kill()
		<-g.gone
	}
}

// Console returns the text that the guest's kernel and its first process have printed.
func (g *Guest) Console() string { return g.console.String() }

// Start runs a program in the guest. The program is killed when ctx ends.
func (g *Guest) Start(ctx context.Context, argv ...string) (*Process, error) {
	return g.StartRequest(ctx, agent.Request{Argv: argv})
}

// dial connects to the agent. For a moment after a boot, the host may still take the guest for
// unreachable.
func (g *Guest) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	for end := time.Now().Add(neighborPatience); ; time.Sleep(neighborPause) {
		conn, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(g.Addr(false), agent.Port).String())
		if !errors.Is(err, syscall.EHOSTUNREACH) || time.Now().After(end) {
			return conn, err
		}
	}
}

// StartRequest is Start for programs that need an environment or input.
func (g *Guest) StartRequest(ctx context.Context, req agent.Request) (*Process, error) {
	p := newProcess(g.name, req.Argv)
	ctx, cancel := context.WithCancelCause(ctx)
	gone := g.gone // the next boot replaces g.gone
	go func() {
		select {
		case <-gone: // a dead guest sends nothing that would end the connection
			cancel(errGuestGone)
		case <-ctx.Done():
		}
	}()
	c, err := g.call(ctx, req, p)
	if err != nil {
		cancel(nil)
		return nil, fmt.Errorf("start %v: %w", p, err)
	}
	p.signal = c.Signal
	go func() {
		<-c.Done()
		p.status, p.err = c.Status()
		if p.err != nil && ctx.Err() != nil {
			p.err = context.Cause(ctx)
		}
		cancel(nil)
		close(p.done)
	}()
	return p, nil
}

var errGuestGone = errors.New("the guest has gone")

// call hands a request to the agent. The connection closes when ctx ends.
func (g *Guest) call(ctx context.Context, req agent.Request, p *Process) (*agent.Command, error) {
	conn, err := g.dial(ctx)
	if err == nil {
		context.AfterFunc(ctx, func() { conn.Close() })
		var c *agent.Command
		if c, err = agent.Start(conn, req, &p.stdout, &p.stderr); err == nil {
			return c, nil
		}
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return nil, err
}

// Run runs a program until it ends. If the program fails, the error contains its output.
func (g *Guest) Run(ctx context.Context, argv ...string) (stdout string, err error) {
	p, err := g.Start(ctx, argv...)
	if err != nil {
		return "", err
	}
	res, err := p.Wait()
	if err != nil || res.Status != (agent.Status{}) {
		err = errors.New(p.Report())
	}
	return res.Stdout, err
}

// AwaitTCP returns when a program in the guest listens on a TCP port.
func (g *Guest) AwaitTCP(ctx context.Context, port int) error {
	p, err := g.StartRequest(ctx, agent.Request{AwaitTCP: port})
	if err != nil {
		return err
	}
	res, err := p.Wait()
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case err == nil && res.Status != (agent.Status{}):
		err = errors.New(res.Status.String())
	}
	if err != nil {
		return fmt.Errorf("%v: wait for a listener on TCP port %d: %w", g, port, err)
	}
	return nil
}

// readGIDs reads the device's GID table.
func (g *Guest) readGIDs(ctx context.Context) error {
	out, err := g.Run(ctx, "sh", "-c", "cd /sys/class/infiniband/"+g.Device+"/ports/1/gids && grep -v :0000:0000:0000:0000$ *")
	if err != nil {
		return err
	}
	g.gids = make(map[netip.Addr]int)
	for s := bufio.NewScanner(strings.NewReader(out)); s.Scan(); {
		index, gid, _ := strings.Cut(s.Text(), ":")
		i, err := strconv.Atoi(index)
		addr, aerr := netip.ParseAddr(gid)
		if err != nil || aerr != nil {
			return fmt.Errorf("%v: its table of GIDs has the line %q", g, s.Text())
		}
		g.gids[addr.Unmap()] = i
	}
	for _, a := range g.gidAddrs() {
		if _, ok := g.gids[a]; !ok {
			return fmt.Errorf("%v: %s has no GID of %v: %q", g, g.Device, a, out)
		}
	}
	return nil
}

// sysfsGID returns a GID in the notation of sysfs.
func sysfsGID(a netip.Addr) string {
	raw := a.As16()
	groups := make([]string, 0, 8)
	for i := 0; i < len(raw); i += 2 {
		groups = append(groups, hex.EncodeToString(raw[i:i+2]))
	}
	return strings.Join(groups, ":")
}

var _ = []Side{(*Guest)(nil), (*Host)(nil)}

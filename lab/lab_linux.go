package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
)

// Config configures a lab.
type Config struct {
	// MTU is the network's MTU in bytes. With 1500 the path MTU of RDMA is 1024, and with 9000 it
	// is 4096.
	MTU int
	// Guests is the number of guests. 0 means 1.
	Guests int
	// Device is the type of the guests' RDMA devices: "rxe" (RoCE v2) or "siw" (iWARP). "" means
	// "rxe".
	Device string
	// Release is the Debian release that the guests are made of, such as "trixie". "" means [Release].
	Release string
}

// Lab is a network with guests.
type Lab struct {
	cfg    Config
	img    *image
	host   Host
	guests []*Guest
}

const maxGuests = 8

var labs atomic.Int32 // of this process

// Start makes a network and boots its guests. The process must have called [Enter].
func Start(ctx context.Context, cfg Config) (*Lab, error) {
	l, err := newLab(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("start lab: %w", err)
	}
	if err := l.boot(ctx); err != nil {
		return nil, fmt.Errorf("start lab: %w", err)
	}
	return l, nil
}

// boot boots the guests. If one of them fails, boot closes the lab.
func (l *Lab) boot(ctx context.Context) error {
	faults := make([]error, len(l.guests))
	var wg sync.WaitGroup
	for i, g := range l.guests {
		wg.Go(func() { faults[i] = g.Boot(ctx) })
	}
	wg.Wait()
	err := errors.Join(faults...)
	if err != nil {
		err = errors.Join(err, l.Close())
	}
	return err
}

// newLab makes a network with guests that are not yet booted.
func newLab(ctx context.Context, cfg Config) (*Lab, error) {
	if !inside() {
		return nil, errors.New("the process is not in a network of its own: call Enter first")
	}
	if cfg.Guests == 0 {
		cfg.Guests = 1
	}
	if cfg.Guests < 0 || cfg.Guests > maxGuests {
		return nil, fmt.Errorf("%d guests, limit %d", cfg.Guests, maxGuests)
	}
	if cfg.Device == "" {
		cfg.Device = deviceRxe
	}
	if deviceModules[cfg.Device] == nil {
		return nil, fmt.Errorf("device %q: want %q or %q", cfg.Device, deviceRxe, deviceSiw)
	}
	img, err := releaseImage(ctx, cfg.Release)
	if err != nil {
		return nil, err
	}
	if err := img.lacks(cfg.Device); err != nil {
		return nil, err
	}
	n := int(labs.Add(1)) - 1
	l := &Lab{cfg: cfg, img: img}
	l.host = Host{Interface: fmt.Sprintf("lab%d", n), bin: filepath.Join(os.TempDir(), adverbFile), addr4: prefix4(n, 1), addr6: prefix6(n, 1)}
	for i := range cfg.Guests {
		l.guests = append(l.guests, &Guest{
			Device: cfg.Device + "0",
			lab:    l,
			name:   fmt.Sprintf("guest%d.%d", n, i),
			tap:    fmt.Sprintf("lab%d.%d", n, i),
			mac:    mac(n, i+2),
			addr4:  prefix4(n, i+2),
			addr6:  prefix6(n, i+2),
		})
	}
	if err := l.makeNetwork(ctx, mac(n, 1)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func prefix4(lab, host int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 47, byte(lab), byte(host)}), 24)
}

func prefix6(lab, host int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x47, 5: byte(lab), 15: byte(host)}), 64)
}

func mac(lab, host int) string { return fmt.Sprintf("52:54:00:47:%02x:%02x", lab, host) }

// makeNetwork makes a bridge with the host's addresses, and a tap for each guest.
func (l *Lab) makeNetwork(ctx context.Context, mac string) error {
	br, mtu := l.host.Interface, l.cfg.MTU
	lines := []string{
		"link set lo up",
		// Multicast goes to all ports, because there is no querier that would learn who wants it.
		fmt.Sprintf("link add %s address %s type bridge stp_state 0 forward_delay 0 mcast_snooping 0", br, mac),
	}
	for _, g := range l.guests {
		lines = append(lines,
			"tuntap add dev "+g.tap+" mode tap",
			// The queue must hold a megabyte in small packets, since UC and UD repeat nothing.
			fmt.Sprintf("link set %s mtu %d txqueuelen 10000 addrgenmode none master %s up", g.tap, mtu, br))
	}
	lines = append(lines,
		fmt.Sprintf("link set %s mtu %d up", br, mtu),
		fmt.Sprintf("addr add %v dev %s", l.host.addr4, br),
		fmt.Sprintf("addr add %v dev %s nodad", l.host.addr6, br))
	for _, line := range lines {
		if err := l.img.ip(ctx, line); err != nil {
			return err
		}
	}
	return nil
}

// ip runs the program ip with the words of line as arguments.
func (img *image) ip(ctx context.Context, line string) error {
	out, err := img.command(ctx, "usr/bin/ip", strings.Fields(line)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", line, err, out)
	}
	return nil
}

// MTU returns the network's MTU in bytes.
func (l *Lab) MTU() int { return l.cfg.MTU }

// Host returns this machine's end of the network. Our programs run there.
func (l *Lab) Host() *Host { return &l.host }

// Guest returns guest i. The first is 0.
func (l *Lab) Guest(i int) *Guest { return l.guests[i] }

// Close kills the guests and removes the network. The end of the process does the same.
func (l *Lab) Close() error {
	var faults []error
	for _, g := range l.guests {
		g.Kill()
		faults = append(faults, l.img.ip(context.Background(), "link del "+g.tap))
	}
	return errors.Join(append(faults, l.img.ip(context.Background(), "link del "+l.host.Interface))...)
}

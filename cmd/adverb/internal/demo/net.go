package demo

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/trace"
	"github.com/adverb-rdma/adverb/internal/showpackets"
	"github.com/adverb-rdma/adverb/verbs"
)

// network is the two devices of the demonstration, each on a loopback address of its own.
type network struct {
	server, client         *verbs.Device
	serverAddr, clientAddr netip.Addr

	captures captures
	trace    bool
}

// addressPairs is how many pairs of loopback addresses are tried. Other programs may hold the
// RoCEv2 port of some of them.
const addressPairs = 16

// openNetwork opens the devices.
func openNetwork(v *view, f flags) (n *network, err error) {
	n = &network{trace: f.trace}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if err = n.captures.open(f, nil); err != nil {
		return n, err
	}
	for i := range byte(addressPairs) {
		n.serverAddr, n.clientAddr = netip.AddrFrom4([4]byte{127, 0, i, 1}), netip.AddrFrom4([4]byte{127, 0, i, 2})
		if err = n.open(v); !errors.Is(err, syscall.EADDRINUSE) {
			return n, err
		}
	}
	return n, fmt.Errorf("%w: other programs use UDP port %d of 127.0.0.1, 127.0.1.1 and on", err, link.Port)
}

// open opens the two devices on the addresses chosen.
func (n *network) open(v *view) (err error) {
	if n.server, err = openDevice(n.serverAddr, n.middleware(v, roleServer), &n.captures); err != nil {
		return err
	}
	if n.client, err = openDevice(n.clientAddr, n.middleware(v, roleClient), &n.captures); err != nil {
		err = errors.Join(err, n.server.Close())
		n.server = nil
	}
	return err
}

// middleware shows and records the packets that an end sends.
func (n *network) middleware(v *view, from role) []link.Middleware {
	mw := []link.Middleware{trace.New(showpackets.Zero(), func(e trace.Event) {
		if e.Sent {
			v.packet(from, e.Payload)
		}
	})}
	if n.trace {
		mw = append(mw, trace.New(showpackets.Zero(), trace.ToWriter(v, from.String())))
	}
	return append(mw, n.captures.middleware()...)
}

// loopback returns the name of the loopback interface.
func loopback() (string, error) {
	ifis, err := net.Interfaces()
	if err != nil {
		return "", err
	}
	for _, i := range ifis {
		if i.Flags&net.FlagLoopback != 0 && i.Flags&net.FlagUp != 0 {
			return i.Name, nil
		}
	}
	return "", errors.New("no loopback interface is up (\"ip link set lo up\")")
}

func (n *network) close() error {
	var errs []error
	for _, d := range []*verbs.Device{n.client, n.server} {
		if d != nil {
			errs = append(errs, d.Close())
		}
	}
	return errors.Join(append(errs, n.captures.close())...)
}

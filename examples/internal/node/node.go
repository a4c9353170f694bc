// Package node has the code that all examples share: their frame, and finding the RDMA device for an address.
package node

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	_ "github.com/adverb-rdma/adverb/provider/soft" // registers soft_lo, soft_eth0 …
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// Listen listens on an address such as 0.0.0.0:7471.
func Listen(addr string) (*rdmacm.Listener, error) {
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	var c rdmacm.ListenConfig
	if dev, err := device(at.Addr()); err != nil {
		return nil, err
	} else if dev != nil {
		c.Devices = []*verbs.Device{dev}
	}
	return c.Listen(at)
}

// Dialer returns a dialer that connects from a local address, or from anywhere if local is empty.
func Dialer(local string) (*rdmacm.Dialer, error) {
	if local == "" {
		return &rdmacm.Dialer{}, nil
	}
	at, err := netip.ParseAddr(local)
	if err != nil {
		return nil, err
	}
	dev, err := device(at)
	return &rdmacm.Dialer{Devices: []*verbs.Device{dev}, LocalAddr: netip.AddrPortFrom(at, 0)}, err
}

// opened are the devices that device has opened. They stay open: all connections of an address share
// one, and its sockets.
var opened = struct {
	sync.Mutex
	devices map[netip.Addr]*verbs.Device
}{devices: make(map[netip.Addr]*verbs.Device)}

// device opens the device of a loopback address other than 127.0.0.1. No interface lists such an
// address, so the device must be asked for by name. For other addresses device returns nil: the
// connection manager finds their devices.
func device(addr netip.Addr) (*verbs.Device, error) {
	if !addr.IsLoopback() || addr.Is6() || addr == netip.AddrFrom4([4]byte{127, 0, 0, 1}) {
		return nil, nil
	}
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, i := range ifs {
		if i.Flags&net.FlagLoopback == 0 {
			continue
		}
		opened.Lock()
		defer opened.Unlock()
		if dev := opened.devices[addr]; dev != nil {
			return dev, nil
		}
		dev, err := verbs.Open("soft_" + i.Name + "@" + addr.String())
		if err == nil {
			opened.devices[addr] = dev
		}
		return dev, err
	}
	return nil, fmt.Errorf("no loopback interface for %v", addr)
}

// Pause waits a moment before a client dials again, and reports whether ctx goes on.
func Pause(ctx context.Context) bool {
	select {
	case <-time.After(50 * time.Millisecond):
		return true
	case <-ctx.Done():
		return false
	}
}

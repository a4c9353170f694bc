package bench

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/bench/emulator"
)

// pathName is the interface's name, in either namespace.
const pathName = "path0"

// pathQueue is how many packets wait for the emulator at most. They wait a moment; the path's own buffer is the
// emulator's.
const pathQueue = 10_000

// tcpSettings give TCP the buffers that it needs on a long path, and make it forget the metrics of the cell before.
var tcpSettings = map[string]string{"tcp_wmem": "4096 131072 67108864", "tcp_rmem": "4096 131072 67108864", "tcp_no_metrics_save": "1"}

// openPath makes two network namespaces with an emulated path between them.
func openPath(c emulator.Config, cpus []int) (*pathSite, error) {
	s := &site{network: &pathNetwork, netdev: pathName, mtu: pathNetwork.mtu}
	if err := s.separate(vethAddrs, cpus); err != nil {
		return nil, err
	}
	var devices [2]*emulator.Device
	s.cleanup = func() {
		for _, d := range devices {
			if d != nil {
				d.Close()
			}
		}
	}
	for i, e := range s.ends {
		err := e.do(func() (err error) {
			if devices[i], err = emulator.OpenDevice(pathName); err != nil {
				return err
			}
			if c.MarkAbove > 0 {
				err = os.WriteFile("/proc/sys/net/ipv4/tcp_ecn", []byte("1"), 0)
			}
			for name, value := range tcpSettings {
				err = errors.Join(err, os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0))
			}
			return errors.Join(err, lengthen(s.mtu), bringUp(pathName, e.addr))
		})
		if err != nil {
			s.close()
			return nil, fmt.Errorf("connect two network namespaces by an emulator: %w", err)
		}
	}
	thread, err := newPlace(emulator.Hurry)
	if err != nil {
		s.close()
		return nil, err
	}
	e := emulator.New(c, devices[atClient], devices[atServer])
	thread.jobs <- e.Run
	return &pathSite{s, func() ([2]emulator.Stats, emulator.Lateness) {
		stats, late := e.Stop()
		thread.close()
		s.close()
		return stats, late
	}}, nil
}

// lengthen sets the device's MTU and the length of its queue.
func lengthen(mtu int) error {
	dev, err := net.InterfaceByName(pathName)
	if err != nil {
		return err
	}
	ae := netlink.NewAttributeEncoder()
	ae.Uint32(unix.IFLA_MTU, uint32(mtu))
	ae.Uint32(unix.IFLA_TXQLEN, pathQueue)
	attrs, err := ae.Encode()
	if err != nil {
		return err
	}
	if err := request(unix.RTM_NEWLINK, 0, append(ifinfomsg(dev.Index, 0, 0), attrs...)); err != nil {
		return fmt.Errorf("set the MTU of %s: %w", pathName, err)
	}
	return nil
}

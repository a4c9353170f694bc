package bench

import (
	"fmt"
	"net"
	"runtime"
)

// A network connects the two ends. A new one is a line in networks.
type network struct {
	name    string
	title   string
	mtu     int // bytes of an IP packet; 0 if it is as it is
	pathMTU int // bytes of payload in a packet
	open    func(n *network, cpus []int) (*site, error)
	memory  bool // the two ends share memory, and the peers are those that do
}

var networks = []network{
	{"loopback", "UDP loopback", 0, 4096, openLoopback, false},
	{"memory", "memory that two processes share", 0, 4096, openMemory, true},
	{"veth9000", "veth pair between two network namespaces", 9000, 4096, openVeth, false},
	{"veth1500", "veth pair between two network namespaces", 1500, 1024, openVeth, false},
}

// A site is an open network: where the server and the client run.
type site struct {
	network *network
	netdev  string
	mtu     int
	ends    [2]location // the server's, the client's
	cleanup func()
}

// location is where an end runs.
type location struct {
	*place
	addr   string
	device string // the RDMA device with that address
}

const (
	atServer = 0
	atClient = 1
)

func (s *site) close() {
	for _, e := range s.ends {
		if e.place != nil {
			e.place.close()
		}
	}
	if s.cleanup != nil {
		s.cleanup()
	}
}

// at makes the end's location: its address, and a place that enter has entered.
func (s *site) at(end int, addr string, cpus []int, enter func() error) error {
	p, err := newPlace(func() error {
		if cpus != nil {
			if err := pin(cpus[end]); err != nil {
				return fmt.Errorf("pin to core %d: %w", cpus[end], err)
			}
		}
		return enter()
	})
	if err != nil {
		return err
	}
	s.ends[end] = location{p, addr, "soft_" + s.netdev + "@" + addr}
	return nil
}

// Addresses of loopback that nothing else is likely to use.
var loopbackAddrs = [2]string{"127.0.113.1", "127.0.113.2"}

// openMemory has both ends on the loopback interface, as they are for who shares memory.
func openMemory(n *network, cpus []int) (*site, error) {
	if runtime.GOOS != "linux" {
		return nil, fmt.Errorf("processes share memory on Linux only")
	}
	s, err := openLoopback(n, cpus)
	if err == nil {
		s.mtu = 0 // nothing is cut by it
	}
	return s, err
}

// openLoopback has both ends on the loopback interface. Outside Linux it has one address, which can be
// that of one process only.
func openLoopback(n *network, cpus []int) (*site, error) {
	s := &site{network: n}
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, i := range ifs {
		if i.Flags&net.FlagLoopback != 0 && i.Flags&net.FlagUp != 0 {
			s.netdev, s.mtu = i.Name, i.MTU
			break
		}
	}
	if s.netdev == "" {
		return nil, fmt.Errorf("there is no loopback interface that is up")
	}
	addrs := loopbackAddrs
	if runtime.GOOS != "linux" { // see README: the second address takes an alias
		addrs = [2]string{"127.0.0.1", "127.0.0.2"}
	}
	for end, addr := range addrs {
		if err := s.at(end, addr, cpus, func() error { return nil }); err != nil {
			s.close()
			return nil, err
		}
	}
	return s, nil
}

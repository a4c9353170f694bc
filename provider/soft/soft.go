// Package soft registers the software RDMA devices with package verbs. There is one for each
// network interface that has an address, named soft_lo, soft_eth0 and so on. Import the package for
// its side effect:
//
//	import _ "github.com/adverb-rdma/adverb/provider/soft"
//
// Each interface has a device that speaks iWARP too, RDMA over TCP: iw_lo, iw_eth0 and so on. Its QPs are RC
// and connected by package rdmacm. verbs.Open takes these names at any time. With ADVERB_IWARP=1 in the
// environment the devices are listed, before the others, so that rdmacm takes them for the addresses of their
// interfaces. They are not listed otherwise, since they would double all listings, and since programs which
// take the first device expect one whose QPs they can connect themselves. ADVERB_IWARP_CRC=1 has them ask
// for CRCs. Peers may ask for CRCs, and for MPA's markers, at any time.
//
// The other devices speak RoCEv2 over UDP port 4791, without privileges. The GIDs of a device are the
// addresses of its interface. verbs.Open also takes a name with one address, such as
// "soft_lo@127.0.0.2". The GID table of that device contains only this address. On a loopback
// interface it may be any address of the interface's networks, so that each program on a host can
// have one of its own.
//
// A device follows the addresses of its interface, and says so by verbs.EventGIDChange. When the interface is deleted, or
// another one takes its name, the device fails with verbs.EventDeviceFatal, and verbs.Open opens another. verbs.WatchDevices
// tells when it is time to look.
//
// Two environment variables show the packets of every device that a program opens:
//
//	ADVERB_TRACE=1              one line for each packet on standard error
//	ADVERB_PCAP=packets.pcapng  a capture for Wireshark, without privileges
//
// "%p" in the name of the capture stands for the process ID. Of several processes that write to one name at
// the same time each further one writes to packets-<pid>.pcapng. The file is readable by its owner only, and
// replaces nothing but an earlier capture.
//
// On Linux connected QPs of this host send packets to each other by shared memory, without system calls,
// where both programs are of one user, beyond doubt, and of one network namespace. Packets that ADVERB_TRACE or
// ADVERB_PCAP shall show go by the network, and so does all of a program with ADVERB_SHM=0. QP.Carrier and the
// counters shm_sent_pkts and shm_rcvd_pkts of a QP say which way it uses. WRITEs, READs and atomics of up to 64 KiB
// to a region that is in frequent use need no packet, nor does QP.TryWrite: shm_direct_ops counts them.
//
// In a user namespace that does not map all users, the kernel shows all whom it does not map by one number, 65534. A
// program that runs as that number there cannot know others of its user. It shares neither memory nor addresses: an
// address belongs to one device at a time. The log says so.
//
// ADVERB_CONGESTION=dcqcn, or delay, has QPs find out by marks of congestion, or by the round trip, how fast they
// may send: see verbs.QP.SetCongestionControl, which chooses for one QP.
//
// ADVERB_ROUTING=send,accept has RC QPs send and take WRITEs in the form that lets switches route each packet by
// itself. mark=0x20 chooses the bit of the BTH that says so, and patience=2ms for how long a gap is not taken for a
// loss. paths=4 has each QP send from as many source ports, so that it fills several equal paths. See
// verbs.QP.SetAdaptiveRouting, which chooses for one QP.
//
// ADVERB_EXTENSIONS=0 has RC QPs talk to other adverbs as to cards and kernels: with the standard's packets alone, and so
// without selective repeat. So one machine suffices to see the packets that such a peer gets.
//
// ADVERB_ROCEV1=1 gives devices GIDs of RoCEv1 too, behind those of RoCEv2: each address again, and the link-local GID of
// the interface's MAC address. A path from such a GID takes frames of Ethernet in place of UDP. "first" puts these GIDs
// before the others, so that rdmacm connects by RoCEv1. This is for Linux, and needs root or CAP_NET_RAW: else Open fails.
// A device has one shard then, and at any time one process has an address of RoCEv1.
//
// On Linux a program with an open device answers "adverb stat" and "adverb res", asked by the same user or
// by root. ADVERB_WATCH=0 keeps it from that.
package soft

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/adverb-rdma/adverb/internal/clock"
	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/host"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/udp"
	"github.com/adverb-rdma/adverb/internal/rnic"
	"github.com/adverb-rdma/adverb/internal/settings"
	"github.com/adverb-rdma/adverb/internal/showpackets"
	"github.com/adverb-rdma/adverb/verbs"
)

const namePrefix = "soft_"

func init() { verbs.Register("soft", provider{}) }

type provider struct{}

// Devices lists a device for each network interface with an address. Those of loopback interfaces
// come last, so that a tool which takes the first device can reach other hosts.
func (provider) Devices() ([]verbs.DeviceInfo, error) {
	netdevs, err := udp.Netdevs()
	if err != nil {
		return nil, err
	}
	var all, loopback []verbs.DeviceInfo
	lists, err := settings.Switch(envList, false)
	if err != nil {
		return nil, err
	}
	if lists {
		all = rnics(netdevs)
	}
	for _, n := range netdevs {
		info, err := hca.Describe(n, "")
		if err != nil {
			continue // the interface has vanished since it was listed
		}
		addRivals(&info, n)
		if isLoopback(n) {
			loopback = append(loopback, info)
		} else {
			all = append(all, info)
		}
	}
	return append(all, loopback...), nil
}

// Watch implements verbs.ProviderWatcher: the kernel tells when interfaces and addresses change, or a look every two
// seconds does.
func (provider) Watch(changed func()) (stop func()) { return udp.Watch(changed) }

// processClock is the clock of all devices of the process, or nil.
var processClock = sync.OnceValue(clock.New)

func isLoopback(n link.Netdev) bool {
	s, err := n.State()
	return err == nil && slices.ContainsFunc(s.Addrs, netip.Addr.IsLoopback)
}

// Open opens a device by a name that Devices lists, or by such a name with an address.
func (p provider) Open(name string) (verbs.ProviderDevice, error) {
	ifname, isRNIC := strings.CutPrefix(name, rnic.NamePrefix)
	if !isRNIC {
		var ok bool
		if ifname, ok = strings.CutPrefix(name, namePrefix); !ok {
			return nil, verbs.ErrNotFound
		}
	}
	env, err := readEnvironment()
	if err != nil {
		return nil, err
	}
	if isRNIC {
		return openRNIC(name, ifname, env)
	}
	netdev, err := openNetdev(ifname)
	if err != nil {
		return nil, err
	}
	shared := host.Share(netdev)
	config := hca.Config{
		Name: name, ClaimService: shared.ClaimService, ShareService: shared.ShareService, ServeGSI: shared.ServeGSI, LastWords: shared.LastWords,
		Spin: env.spin(), Clock: processClock(), Yielder: yielder, Congestion: env.qps.Congestion, Routing: env.qps.Routing,
		Standard: env.qps.Standard, Alone: host.Alone(), Refused: udp.Refused(),
	}
	shown, err := showpackets.Device(name, showpackets.Zero())
	if err != nil {
		shared.Close()
		return nil, err
	}
	config.Middleware, config.Closers, config.Journal = shown.Middleware, shown.Closers, shown.Journal
	memory := env.shm && len(config.Middleware) == 0
	config.Ways = ways(shared, memory)
	netif, err := withV1(shared, env.v1, &config)
	if err != nil {
		shared.Close()
		return nil, err
	}
	shards := env.shards
	if env.v1 != noV1 {
		shards = 1 // a packet socket takes all frames of an address
	}
	if shards == 0 {
		shards = min(runtime.GOMAXPROCS(0), usualShards)
	}
	for range shards - 1 {
		if s := shared.Shard(); s != nil {
			config.Shards = append(config.Shards, hca.Shard{Netdev: s, Ways: ways(s, memory)})
		}
	}
	d, err := hca.Open(netif, config)
	if err != nil {
		return nil, err
	}
	return device{d, shared, env.listen()}, nil
}

// ways returns the ways by which packets leave a device on a network interface. memory says that packets may go by
// shared memory.
func ways(n *host.Netdev, memory bool) hca.Ways {
	w := hca.Ways{Claim: n.Claim}
	if memory {
		n.ShareMemory()
		w.Lane, w.Inbox = n.Lane, n.Inbox
	}
	return w
}

// usualShards bounds the shards of a device without ADVERB_SHARDS: one for each processor. Each shard in use
// costs some files, and one more lane from each other process.
const usualShards = 4

// spinPolls is how often a device looks for datagrams before a goroutine sleeps. A look takes about half
// a microsecond, so this is some 100 µs.
const spinPolls = 200

// spin returns the device's spinning. With one processor nothing can come while a goroutine spins.
func (e *environment) spin() int {
	if !e.spins || runtime.NumCPU() == 1 || runtime.GOMAXPROCS(0) == 1 {
		return 0
	}
	return spinPolls
}

// openNetdev opens a network interface, perhaps with one address of it: "lo" or "lo@127.0.0.2".
func openNetdev(name string) (*udp.Netdev, error) {
	ifname, only, one := strings.Cut(name, "@")
	netdevs, err := udp.Netdevs()
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(netdevs, func(n *udp.Netdev) bool { return n.Name() == ifname }) {
		return nil, noDevice(ifname)
	}
	if !one {
		return udp.OpenNetdev(ifname)
	}
	addr, err := netip.ParseAddr(only)
	if err != nil {
		return nil, verbs.Errorf(verbs.ErrInvalid, "the address after @ does not parse: %w", err)
	}
	netdev, err := udp.NetdevForAddr(ifname, addr)
	if err != nil {
		return nil, verbs.Errorf(verbs.ErrInvalid, "%w", err)
	}
	return netdev, nil
}

// noDevice says why a network interface has no device. It is verbs.ErrNotFound where there is no such
// interface.
func noDevice(ifname string) error {
	ifi, err := net.InterfaceByName(ifname)
	if err != nil {
		return verbs.ErrNotFound
	}
	if ifi.Flags&net.FlagUp == 0 {
		return fmt.Errorf("network interface %s is down and has no address (\"ip link set %s up\" changes that): %w", ifname, ifname, syscall.ENETDOWN)
	}
	return fmt.Errorf("network interface %s has no address (\"ip address add\" gives it one): %w", ifname, syscall.EADDRNOTAVAIL)
}

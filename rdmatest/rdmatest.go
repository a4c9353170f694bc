// Package rdmatest gives tests RDMA devices on a network in memory, without cards, sockets or
// privileges:
//
//	net := rdmatest.New(t)
//	a, b := net.Device(), net.Device()
//	x, y := rdmatest.Connect(t, a, b)
//
// The devices are those of provider/soft, on a simulated network. On demand the network loses, repeats,
// reorders, corrupts and delays packets, and is congested. The fate of the n-th packet between two
// devices depends on a seed only. So do QPNs, keys, and the numbers that a connection manager draws. A
// test that fails prints the seed. To repeat the test, set the environment variable ADVERB_SEED to it.
//
// Inside testing/synctest, timeouts and delays take no time. There, a test with one packet under way
// at a time sends the same bytes at the same times at each run, with the same seed: it waits for each
// completion before it posts the next work request, and the network repeats nothing. Its regions are those
// of Endpoint.MR, whose addresses follow from the order in which they are made; AllocMR's are the system's
// choice.
//
// Ports make topologies, by Network.Route and Network.Paths: links with a rate, a delay, a buffer and ECN marks, which
// devices share; equal paths, of which switches choose one by a hash or for each packet; links that go down or are bad.
// Plots over time need Port.ResetStats. The examples have an incast, a permutation, mice among elephants, a link that
// flaps, one that loses packets, and a table of rates, queue and fairness.
//
// ADVERB_TRACE=1 prints a line for each packet, and ADVERB_PCAP=packets.pcapng writes a capture for Wireshark, as package
// provider/soft describes. "go test" shows the lines with -v, and of tests that fail: it keeps back the lines of tests
// that pass. ADVERB_CONGESTION, ADVERB_ROUTING and ADVERB_EXTENSIONS have the meaning that they have there.
package rdmatest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/settings"
	"github.com/adverb-rdma/adverb/internal/showpackets"
	"github.com/adverb-rdma/adverb/verbs"
)

// Config says how a network treats packets. Its zero value is a network without faults.
type Config struct {
	Seed uint64 // 0: the value of ADVERB_SEED or, if that is not set, a random seed

	// Probabilities from 0 to 1, for each packet.
	Loss, Duplicate, Reorder, Corrupt float64

	// Delay is how long a packet takes, and Jitter how much longer it may take at random.
	Delay, Jitter time.Duration

	// MarkCE is the probability that a packet is marked as having met congestion. Only packets that
	// allow it are marked. The traffic class of the sender's path or address handle decides that:
	// its lower two bits are ECN.
	MarkCE float64

	// Rate is how many bytes get through to each address in a second; 0 sets no limit. Packets that
	// come faster wait.
	Rate int64

	// MarkCEAbove is a number of bytes: packets that find more bytes waiting are marked too. 0 marks
	// none.
	MarkCEAbove int

	// MTU is that of the network, in bytes; 0 is 9000, which gives an RDMA MTU of 4096. On InfiniBand it is the largest
	// path MTU that a port takes: 256, 512, 1024, 2048, or 4096, for which 0 stands.
	MTU int

	// RoCEv1 gives each device GIDs of RoCEv1 too, before those of RoCEv2, so that packets are RoCEv1's unless a GID index
	// says otherwise. GIDs 0 and 1 are the two addresses, 2 is the link-local GID of the MAC address, and 3 and 4 are
	// the addresses again, of RoCEv2. Package rdmacm connects by RoCEv1 then.
	RoCEv1 bool

	// InfiniBand makes the network a subnet of InfiniBand: see [InfiniBand]. Of the fields above Seed and MTU count there, and
	// Loss and Corrupt, for each cable.
	InfiniBand bool
	LMC        uint8 // on InfiniBand: each port has 2^LMC LIDs, 0 to 7
}

// RoCEv1 returns the Config of a network whose devices speak RoCEv1. It has no faults.
//
//	net := rdmatest.New(t, rdmatest.RoCEv1())
func RoCEv1() Config { return Config{RoCEv1: true} }

// Network is a network in memory.
type Network struct {
	t    testing.TB
	seed uint64
	v1   bool      // devices have GIDs of RoCEv1
	zero time.Time // of traces
	sim  *sim.Network
	ib   *subnets // or nil

	mu   sync.Mutex
	devs int
	rng  *rand.Rand // of the numbers that devices draw
}

// New makes a network, which exists as long as the test runs. It takes at most one Config.
func New(t testing.TB, config ...Config) *Network {
	t.Helper()
	var c Config
	if len(config) > 0 {
		c = config[0]
	}
	if c.Seed == 0 {
		c.Seed = linktest.DrawSeed(t)
	}
	n := &Network{t: t, seed: c.Seed, v1: c.RoCEv1, zero: time.Now(), sim: sim.New(sim.Config{
		Seed: c.Seed, Loss: c.Loss, Duplicate: c.Duplicate, Reorder: c.Reorder, Corrupt: c.Corrupt,
		Delay: c.Delay, Jitter: c.Jitter, MarkCE: c.MarkCE, Rate: c.Rate, MarkCEAbove: c.MarkCEAbove, MTU: c.MTU,
	})}
	n.rng = rand.New(rand.NewPCG(c.Seed, 1))
	if c.InfiniBand {
		n.ib = newSubnets(n, c)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("rdmatest: seed %#x; %s=%#x repeats it", n.seed, linktest.EnvSeed, n.seed)
		}
	})
	return n
}

// Seed returns the network's seed.
func (n *Network) Seed() uint64 { return n.seed }

// Device adds a device to the network. The first is named sim0, and has the addresses 10.0.0.1 and
// fd00::1 as GIDs 0 and 1. The next is sim1, with 10.0.0.2 and fd00::2, and so on. At the end of
// the test the device is closed, with all its objects that are still open.
//
// On InfiniBand the device has one GID, of its port's GUID. Its port has a cable to the first switch.
func (n *Network) Device() *verbs.Device {
	n.t.Helper()
	if n.ib != nil {
		return n.ib.home.Device()
	}
	i := n.nextDevice()
	host := uint16(i + 1)
	v4 := netip.AddrFrom4([4]byte{10, 0, byte(host >> 8), byte(host)})
	v6 := netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(host >> 8), 15: byte(host)})
	name := fmt.Sprintf("sim%d", i)
	netdev := n.sim.Netdev(name)
	if n.v1 {
		n.addV1(netdev, v4, v6)
	}
	netdev.AddAddr(v4)
	netdev.AddAddr(v6)
	return n.open(name, netdev)
}

// nextDevice counts a device.
func (n *Network) nextDevice() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.devs++
	return n.devs - 1
}

// open makes a device on a network interface.
func (n *Network) open(name string, netdev link.Netdev) *verbs.Device {
	n.t.Helper()
	dev := new(device)
	env, err := hca.ReadQPEnvironment()
	if err != nil {
		n.t.Fatalf("rdmatest: %v", err)
	}
	c := hca.Config{Name: name, Random: n.random, IOVA: dev.regions.iova, Congestion: env.Congestion, Routing: env.Routing, Standard: env.Standard}
	if _, err = settings.Value(mem.EnvDebug, mem.ParseDebug); err != nil {
		n.t.Fatalf("rdmatest: %v", err)
	}
	if n.ib == nil { // there Capture shows packets
		shown, err := showpackets.Device(name, n.zero)
		if err != nil {
			n.t.Fatalf("rdmatest: %v", err)
		}
		c.Middleware, c.Closers, c.Journal = shown.Middleware, shown.Closers, shown.Journal
	}
	dev.Device, err = hca.Open(netdev, c)
	if err != nil {
		n.t.Fatalf("rdmatest: %v", err)
	}
	n.t.Cleanup(func() { dev.Close() })
	return verbs.NewDevice(dev)
}

// addV1 gives a network interface the GIDs of RoCEv1.
func (n *Network) addV1(netdev *sim.Netdev, addrs ...netip.Addr) {
	s, err := netdev.State()
	if err != nil {
		n.t.Fatalf("rdmatest: %v", err)
	}
	for _, a := range addrs {
		netdev.AddAddr(link.V1(a))
	}
	if own, ok := link.LinkLocalV1(s.HardwareAddr); ok {
		netdev.AddAddr(own)
	}
}

// device is a device of a Network.
type device struct {
	*hca.Device
	regions regions
}

// random draws a number for a device.
func (n *Network) random() uint32 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rng.Uint32()
}

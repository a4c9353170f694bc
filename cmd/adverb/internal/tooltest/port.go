package tooltest

import (
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// The ports of the tests are below those that systems hand out to programs that ask for any port,
// so that nobody gets one of them before it is used. Each process begins at another port. Process
// IDs are often neighbours, so the factor spreads them by more ports than a test run takes.
const (
	firstPort = 10000
	numPorts  = 20000
	spread    = 797
)

var portsTaken atomic.Int32

func nextPort() string {
	return strconv.Itoa(firstPort + (os.Getpid()*spread+int(portsTaken.Add(1)))%numPorts)
}

// FreePort returns a TCP port that nobody has.
func FreePort(t *testing.T) string {
	t.Helper()
	for range numPorts {
		port := nextPort()
		l, err := net.Listen("tcp", ":"+port)
		if err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no TCP port is free")
	return ""
}

// FreeCMPort returns a port of the connection manager that other runs of the tests on this machine
// hardly have. The connection manager's ports are not the host's.
func FreeCMPort() string { return nextPort() }

// LoopbackGID returns the index of an address in the GID table of soft_lo. It skips the test if the
// device does not have the address.
func LoopbackGID(t *testing.T, addr string) string {
	t.Helper()
	dev, err := verbs.Open("soft_lo")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := dev.GIDs(1)
	if cerr := dev.Close(); err != nil || cerr != nil {
		t.Fatal(err, cerr)
	}
	for _, e := range entries {
		if e.GID.Addr().String() == addr {
			return strconv.Itoa(e.Index)
		}
	}
	t.Skipf("soft_lo has no address %s", addr)
	return ""
}

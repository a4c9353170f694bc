//go:build !adverb_portable

package soft_test

import (
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// A device that rdmacm has opened and whose network interface has vanished is closed once nothing uses it: when the
// next device is opened or, at the latest, by CloseDevices. It stayed for ever, with its goroutines and sockets.
func TestVanishedDeviceIsClosed(t *testing.T) {
	runInOwnNetwork(t, "TestVanishedDeviceIsClosedInside", envVanishing)
}

func TestVanishedDeviceIsClosedInside(t *testing.T) {
	if os.Getenv(envVanishing) == "" {
		t.Skip("TestVanishedDeviceIsClosed runs this one")
	}
	const name = "vanishing"
	devices := func() (n int) { // each has a goroutine that watches its interface
		for _, g := range goroutinesOf() {
			if strings.Contains(g, "internal/hca.Open.") {
				n++
			}
		}
		return n
	}
	want := func(what string, n int) {
		t.Helper()
		for limit := time.Now().Add(30 * time.Second); devices() != n; runtime.Gosched() { // some are about to end
			if time.Now().After(limit) {
				t.Fatalf("%s %d devices are open, want %d:\n%s", what, devices(), n, strings.Join(goroutinesOf(), "\n\n"))
			}
		}
	}
	for range 3 {
		tun := makeNetdev(t, name, unix.IFF_TUN)
		d := must(verbs.Open("soft_" + name))
		at := must(d.GID(1, 0)).GID.Addr()
		check(d.Close())
		l := must(rdmacm.Listen(netip.AddrPortFrom(at, 0)))
		want("while one works", 1)
		check(unix.Close(tun))
		if _, err := l.Accept(t.Context()); err == nil {
			t.Fatal("a request has come from nowhere")
		}
		check(l.Close())
	}
	check(rdmacm.CloseDevices())
	want("after CloseDevices", 0)
}

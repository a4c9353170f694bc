// Package streamtest has tests of examples serve on a network of rdmatest.
package streamtest

import (
	"fmt"
	"net"
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/rsocket"
	"github.com/adverb-rdma/adverb/verbs"
)

// Listen makes a network of two devices. It returns a listener at a port of one, and who dials from the other.
func Listen(t *testing.T, faults rdmatest.Config, port int) (net.Listener, *rsocket.Dialer) {
	t.Helper()
	net := rdmatest.New(t, faults)
	from, to := net.Device(), net.Device()
	gid, err := to.GID(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	lc := rsocket.ListenConfig{Devices: []*verbs.Device{to}}
	l, err := lc.Listen(t.Context(), "rsocket", fmt.Sprintf("[%v]:%d", gid.GID.Addr(), port))
	if err != nil {
		t.Fatal(err)
	}
	return l, &rsocket.Dialer{Devices: []*verbs.Device{from}}
}

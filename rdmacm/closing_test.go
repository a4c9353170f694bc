package rdmacm

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// simDevice is a device on a simulated network. Package rdmatest has better ones, and imports this package.
func simDevice(t *testing.T, n *sim.Network, i byte) *verbs.Device {
	name := fmt.Sprintf("sim%d", i)
	p, err := hca.Open(n.Netdev(name, netip.AddrFrom4([4]byte{10, 0, 0, i})), hca.Config{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	d := verbs.NewDevice(p)
	t.Cleanup(func() { d.Close() })
	return d
}

// A request that comes while its listener closes is none of the listener's any more. The connector's
// goroutine, which brings it, must not give the agent back last: that waits for this very goroutine.
func TestRequestWhileClosing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	n := sim.New(sim.Config{})
	a, b := simDevice(t, n, 1), simDevice(t, n, 2)
	gid, err := b.GID(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	l, err := (&ListenConfig{Devices: []*verbs.Device{b}}).Listen(netip.AddrPortFrom(gid.GID.Addr(), 0))
	if err != nil {
		t.Fatal(err)
	}
	id := l.id
	ag := id.agent

	// The request stops where it wants the lock.
	id.mu.Lock()
	dialing, stopDialing := context.WithCancel(ctx)
	dialed := make(chan struct{})
	go func() {
		defer close(dialed)
		if conn, err := (&Dialer{Devices: []*verbs.Device{a}}).Dial(dialing, l.id.local, nil); err == nil {
			conn.Close()
		}
	}()
	await(ctx, t, "rdmacm.(*ID).requested")

	// ID.Close, in the order in which a slow request finds it: closed, and all given back.
	binding := id.binding
	id.state, id.binding = stateClosed, nil
	id.conn.Close()
	ag.remove(id)
	released := make(chan struct{})
	go func() {
		defer close(released)
		binding.release()
		ag.release()
	}()
	agents.mu.Lock()
	for ag.uses > 1 { // the request may have a use, and then the other two are given back
		agents.mu.Unlock()
		runtime.Gosched()
		agents.mu.Lock()
		if ctx.Err() != nil {
			break
		}
	}
	agents.mu.Unlock()
	id.mu.Unlock()

	for _, end := range []<-chan struct{}{released, ag.closed} {
		select {
		case <-end:
		case <-ctx.Done():
			t.Fatal("the agent does not end: the connector waits for itself")
		}
	}
	stopDialing()
	<-dialed
	id.ch.detach()
	if err := l.ch.Close(); err != nil {
		t.Error(err)
	}
}

// A request that its sender takes back before anybody has fetched it leaves nothing behind, not even for
// a moment: the listener and then the device can be closed right after. On one processor another
// goroutine, which would do that later, has no turn before.
func TestCloseAfterRequestTakenBack(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	n := sim.New(sim.Config{})
	a, b := simDevice(t, n, 1), simDevice(t, n, 2)
	gid, err := b.GID(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	l, err := (&ListenConfig{Devices: []*verbs.Device{b}}).Listen(netip.AddrPortFrom(gid.GID.Addr(), 0))
	if err != nil {
		t.Fatal(err)
	}
	dialing, stopDialing := context.WithCancel(ctx)
	dialed := make(chan struct{})
	go func() {
		defer close(dialed)
		if conn, err := (&Dialer{Devices: []*verbs.Device{a}}).Dial(dialing, l.id.local, nil); err == nil {
			conn.Close()
		}
	}()
	defer func() { stopDialing(); <-dialed }()
	var request *ID
	for request == nil {
		if ctx.Err() != nil {
			t.Fatal("no request comes")
		}
		runtime.Gosched()
		l.ch.mu.Lock()
		if len(l.ch.queue) > 0 {
			request = l.ch.queue[0].ID
		}
		l.ch.mu.Unlock()
	}

	request.handle(connector.Event{Kind: connector.Rejected, Reason: uint16(RejectTimeout)})
	if err := l.Close(); err != nil {
		t.Errorf("closing the listener: got error %v, want none", err)
	}
	if err := b.Close(); err != nil {
		t.Errorf("closing the device after the listener: got error %v, want none", err)
	}
	if err := l.ch.Close(); err != nil {
		t.Errorf("closing the channel: got error %v, want none", err)
	}
}

// await waits until a goroutine is in a function.
func await(ctx context.Context, t *testing.T, function string) {
	t.Helper()
	buf := make([]byte, 1<<20)
	for !bytes.Contains(buf[:runtime.Stack(buf, true)], []byte(function+"(")) {
		if ctx.Err() != nil {
			t.Fatalf("no goroutine comes to %s", function)
		}
		runtime.Gosched()
	}
}

package connector

import (
	"encoding/binary"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestKernelNumberReused: the kernel gives the number of a connection that is closed to another ID. A connection that is closed
// while the connector's goroutine is at an event of it ends once the command under way has been carried out, and no further
// command has its number.
func TestKernelNumberReused(t *testing.T) {
	const number = 7
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		t.Skip("the kernel of this test writes its answers by /proc/self/mem: ", err)
	}
	defer mem.Close()
	var ends uapi.CMQueryAddrResp
	uapi.PutSockaddr(ends.SrcAddr[:], netip.MustParseAddrPort("192.0.2.2:2"), 0)
	uapi.PutSockaddr(ends.DstAddr[:], netip.MustParseAddrPort("192.0.2.1:1"), 0)
	for _, event := range []uint32{uapi.CMEventAddrResolved, uapi.CMEventRouteResolved, uapi.CMEventDisconnected} {
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := null.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		c := &kernelConnector{dev: rdmatest.New(t).Device(), raw: raw, ids: map[uint64]*kernelID{}, ports: map[Name][]*kernelPort{}, conns: map[*kernelConn]bool{}}
		conn := &kernelConn{c: c, handle: func(Event) {}, typ: verbs.QPTypeRC, connects: true}
		conn.call.Remote = netip.MustParseAddrPort("192.0.2.1:1")
		id := c.name(number, conn.event)
		conn.id = id
		var (
			mu      sync.Mutex
			held    bool // the first command, which the connection is closed during
			free    bool // the number is another ID's
			closing sync.WaitGroup
		)
		c.command = func(_ int, b []byte) error {
			mu.Lock()
			defer mu.Unlock()
			switch cmd := binary.NativeEndian.Uint32(b); {
			case cmd == uapi.CMDestroyID:
				free = true
			case free:
				t.Errorf("event %d: command %d has a number that is another ID's by now", event, cmd)
			case !held:
				held = true
				closing.Go(conn.Close)
				for !free && id.using.TryRLock() { // which fails once Close waits
					id.using.RUnlock()
					mu.Unlock()
					runtime.Gosched()
					mu.Lock()
				}
				if free {
					t.Errorf("event %d: the number is another ID's while command %d is under way", event, cmd)
				}
			}
			var query uapi.CMQueryArg
			if binary.NativeEndian.Uint32(b) != uapi.CMQuery {
				return nil
			}
			if err := uapi.Decode(b[uapi.CMHeaderSize:], &query); err != nil {
				return err
			}
			_, err := mem.WriteAt(uapi.Append(nil, ends), int64(query.Response))
			return err
		}
		c.dispatch(&uapi.CMEventResp{UID: id.name, Event: event})
		closing.Wait()
		if !held || !free {
			t.Errorf("event %d: a command came %v, the ID was destroyed %v", event, held, free)
		}
		conn.Close()
		if err := null.Close(); err != nil {
			t.Error(err)
		}
	}
}

package connector

import (
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// FuzzKernelEvent: whatever the kernel tells of a listener, of a connection of each kind or of a group, nothing panics, and what
// is reported holds together.
func FuzzKernelEvent(f *testing.F) {
	for kind := range uint32(uapi.CMEventTimewaitExit + 2) {
		for of := range uint8(4) {
			ev := uapi.CMEventResp{ID: 7, Event: kind, Status: kind * 0x40000001}
			ev.PutParam(uapi.CMConnParam{QPNum: 3, PrivateDataLen: 255})
			f.Add(of, uapi.Append(nil, ev), uint8(kind))
		}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		f.Fatal(err)
	}
	defer null.Close()
	raw, err := null.SyscallConn()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, of uint8, b []byte, answers uint8) {
		var ev uapi.CMEventResp
		if uapi.Decode(b, &ev) != nil {
			return
		}
		count := uint8(0)
		defer SetCommand(func(int, []byte) error { // which answers nothing, or fails
			if count++; answers>>(count%8)&1 != 0 {
				return syscall.EINVAL
			}
			return nil
		})()
		dev := rdmatest.New(t).Device()
		gone := 0
		c := &kernelConnector{dev: dev, raw: raw, command: command, ids: map[uint64]*kernelID{}, ports: map[Name][]*kernelPort{}, conns: map[*kernelConn]bool{},
			watcher: Watcher{Gone: func(error) { gone++ }}}
		var reports []Event
		handle := func(e Event) { reports = append(reports, e) }
		conn := &kernelConn{c: c, handle: handle, typ: verbs.QPTypeRC, name: Name{PS: wire.PortSpaceTCP}}
		conn.call.Remote = netip.MustParseAddrPort("192.0.2.1:1")
		switch of % 4 {
		case 0: // a connection
			conn.id = c.name(1, conn.event)
			ev.UID = conn.id.name
		case 1: // a lookup
			conn.typ = verbs.QPTypeUD
			conn.id = c.name(1, conn.event)
			ev.UID = conn.id.name
		case 2: // a listener
			p := &kernelPort{name: Name{PS: wire.PortSpaceTCP}, onRequest: func(*Request) func(Event) { return handle }}
			p.id = c.name(1, p.requested)
			ev.UID = p.id.name
		case 3: // a group
			ev.UID = c.name(1, func(ev *uapi.CMEventResp) { conn.groupEvent(netip.MustParseAddr("239.0.0.1"), ev) }).name
		}
		c.dispatch(&ev)
		if gone > 1 || len(reports) > 1 {
			t.Errorf("one event: %d reports, the device gone %d times", len(reports), gone)
		}
		for _, r := range reports {
			if r.Kind == 0 || len(r.Params.PrivateData) > 255 || len(r.Peer.PrivateData) > 255 || (r.Kind == Unreachable || r.Kind == NotJoined) && r.Err == nil {
				t.Errorf("report %+v", r)
			}
		}
		conn.Close()
	})
}

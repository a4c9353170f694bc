package cm

import (
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// Requests have the P_Key of the path, and are served in the port's partitions alone.
func TestPartitions(t *testing.T) {
	const pkey, other = 0x8001, 0x8002
	w := newWorld(t)
	w.b.cfg.HasPKey = func(k uint16) bool { return k == pkey }
	w.b.listen(0)
	path := w.a.path(w.b)
	ask := func(k uint16) {
		t.Helper()
		_, err := w.a.Connect(w.now, path, ConnectParams{Service: testService, Params: testParams(uint32(k)), MTU: 3, PKey: k})
		w.ok(err)
	}
	resolve := func(k uint16) {
		t.Helper()
		_, err := w.a.Resolve(w.now, path, SIDRParams{Service: testService, PKey: k})
		w.ok(err)
	}
	for k, want := range map[uint16]uint16{0: wire.DefaultPKey, pkey: pkey} {
		ask(k)
		if e := w.b.want(EventRequest); e.Request.PKey != want {
			t.Errorf("a REQ of P_Key %#x arrives with %#x", k, e.Request.PKey)
		}
		resolve(k)
		if e := w.b.want(EventSIDRRequest); e.Request.PKey != want {
			t.Errorf("a SIDR_REQ of P_Key %#x arrives with %#x", k, e.Request.PKey)
		}
	}
	ask(other)
	if e := w.a.want(EventRejected); e.Reason != wire.RejInvalidGID {
		t.Errorf("a REQ of another partition: reason %v, want an invalid GID", e.Reason)
	}
	resolve(other)
	if e := w.a.want(EventSIDRReply); e.Status != wire.SIDRRejected {
		t.Errorf("a SIDR_REQ of another partition: status %v, want a rejection", e.Status)
	}
	w.b.wantNone()
}

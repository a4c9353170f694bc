package perftest

import (
	"context"
	"net/netip"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// The C program's client asks for all its QPs at once. The server accepts one after the other, and
// waits for each to be established.
func TestAcceptRequestsAtOnce(t *testing.T) {
	const qps = 3
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	net := rdmatest.New(t)
	serverDev, clientDev := net.Device(), net.Device()
	gid, err := serverDev.GID(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	at := netip.AddrPortFrom(gid.GID.Addr(), 18515)
	createQP := func(id *rdmacm.ID) error {
		return id.CreateQP(nil, verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
	}
	server, client := newAgent(ctx, serverDev, nil), newAgent(ctx, clientDev, nil)
	l, err := server.listen(rdmacm.PortSpaceTCP, at)
	if err != nil {
		t.Fatal(err)
	}
	established := make(chan error, qps)
	ends := make(chan *cmEnd, qps)
	for range qps {
		go func() {
			e, _, err := client.connect(rdmacm.PortSpaceTCP, netip.AddrPort{}, at, -1, 1, &rdmacm.ConnParam{RetryCount: 7}, createQP)
			ends <- e
			established <- err
		}()
	}
	var accepted []*cmEnd
	for range qps {
		// The others ask while this end is busy with one.
		e, err := server.accept(rdmacm.PortSpaceTCP, &rdmacm.ConnParam{RetryCount: 7}, createQP)
		if err != nil {
			t.Fatal(err)
		}
		accepted = append(accepted, e)
	}
	for range qps {
		if err := <-established; err != nil {
			t.Error(err)
		}
		accepted = append(accepted, <-ends)
	}
	for _, e := range accepted {
		if e != nil {
			if err := e.id.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	for _, a := range []*agent{server, client} {
		if err := a.close(); err != nil {
			t.Error(err)
		}
	}
}

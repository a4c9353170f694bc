package hca

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/adverb-rdma/adverb/internal/journal"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// A journal has what programs post, what completes, the states, and the memory that peers may use, in this order, with the
// QP's address once it has one.
func TestJournal(t *testing.T) {
	net := sim.New(sim.Config{})
	var mu sync.Mutex
	var got []string
	open := func(i int, name string) *verbs.Device {
		d, err := Open(net.Netdev(name, simAddr(i)), Config{Journal: func(e journal.Event) {
			mu.Lock()
			defer mu.Unlock()
			addr := "-"
			if e.Addr.IsValid() {
				addr = e.Addr.String()
			}
			words, _, _ := strings.Cut(e.Words, ", remote")
			got = append(got, strings.Join([]string{name, addr, e.Kind.String(), words}, " "))
		}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return verbs.NewDevice(d)
	}
	x, y := connect(t, open(1, "x"), open(2, "y"), options{})
	secret, err := y.pd.AllocMR(8, verbs.AccessLocalWrite)
	y.must(err)
	mr, data := y.mr(64), x.mr(16)
	y.recv(verbs.RecvWR{ID: 7, SGList: []verbs.SGE{secret.SGE(0, 8)}})
	x.send(verbs.SendWR{ID: 1, Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{data.SGE(0, 16)}, Remote: mr.Remote(0)},
		verbs.SendWR{ID: 2, Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{data.SGE(0, 4)}})
	x.done()
	y.done()
	mu.Lock()
	defer mu.Unlock()
	for _, device := range []struct {
		name string
		want []string
	}{
		{"x", []string{"- state RESET to INIT", "10.0.0.1 state INIT to RTR", "10.0.0.1 state RTR to RTS",
			"- MR rkey " + data.RKey().String() + ", 16 bytes",
			"10.0.0.1 WQE WR_RDMA_WRITE, wr_id 1, 16 bytes", "10.0.0.1 WQE WR_SEND, wr_id 2, 4 bytes", "10.0.0.1 CQE wr_id 2, WC_SEND, WC_SUCCESS"}},
		{"y", []string{"- state RESET to INIT", "10.0.0.2 state INIT to RTR", "10.0.0.2 state RTR to RTS",
			"- MR rkey " + mr.RKey().String() + ", 64 bytes", "10.0.0.2 receive WQE wr_id 7, 8 bytes", "10.0.0.2 CQE wr_id 7, WC_RECV, WC_SUCCESS"}},
	} {
		var lines []string
		for _, line := range got {
			if rest, ok := strings.CutPrefix(line, device.name+" "); ok {
				rest, _, _ = strings.Cut(rest, " at 0x")
				lines = append(lines, rest)
			}
		}
		if !slices.Equal(lines, device.want) {
			t.Errorf("%s has\n  %s\nwant\n  %s", device.name, strings.Join(lines, "\n  "), strings.Join(device.want, "\n  "))
		}
	}
}

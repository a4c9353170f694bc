//go:build !adverb_portable

package soft_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// receivers returns how many sockets get the datagrams for the RoCEv2 port of an address.
func receivers(t *testing.T, addr string) int {
	t.Helper()
	all, err := os.ReadFile("/proc/net/udp")
	if err != nil {
		t.Skip(err)
	}
	a := netip.MustParseAddr(addr).As4()
	return strings.Count(string(all), fmt.Sprintf(": %08X:%04X ", binary.NativeEndian.Uint32(a[:]), 4791))
}

// Each CQ, in the order in which QPs begin to use them, has the next shard, which has a socket of its own. QPs with the
// same CQ are of one shard, and the first shard has its socket before any other.
func TestShardsOfCQs(t *testing.T) {
	addr := loopAddr(49)
	t.Setenv("ADVERB_SHARDS", "3")
	d := must(verbs.Open(loopback(t) + "@" + addr))
	t.Cleanup(func() { d.Close() })
	pd := must(d.AllocPD())
	t.Cleanup(func() { pd.Close() })
	create := func(send, recv *verbs.CQ) *verbs.QP {
		q := must(pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeRC, SendCQ: send, RecvCQ: recv, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}}))
		t.Cleanup(func() { q.Close() })
		return q
	}
	connect := func(q *verbs.QP) {
		t.Helper()
		if err := q.Init(1, 0); err != nil {
			t.Fatal(err)
		}
		if err := q.RTR(verbs.Peer{QPN: 1 << 20, GID: verbs.GIDFromAddr(netip.MustParseAddr(addr))}, verbs.Path{}); err != nil {
			t.Fatal(err)
		}
	}
	var cqs []*verbs.CQ
	for range 9 {
		cqs = append(cqs, must(d.CreateCQ(8)))
	}
	create(cqs[0], cqs[1]) // without a way to anybody
	for i, tt := range []struct {
		send, recv, sockets int
	}{
		{3, 4, 2}, {4, 5, 2}, // and the first shard's
		{0, 1, 2}, {0, 0, 2}, {1, 2, 2}, {8, 0, 2},
		{6, 6, 3}, {7, 7, 3}, // round again
	} {
		connect(create(cqs[tt.send], cqs[tt.recv]))
		if n := receivers(t, addr); n != tt.sockets {
			t.Errorf("QP %d, of CQs %d and %d: %d sockets receive, want %d", i, tt.send, tt.recv, n, tt.sockets)
		}
	}
}

// TestShards has connections of one device move data at a time, each in goroutines of its own, by the network and by
// shared memory, with several shards at both ends.
func TestShards(t *testing.T) {
	const pairs, rounds, size = 6, 200, 20000
	for _, shm := range []string{"0", "1"} {
		t.Run("ADVERB_SHM="+shm, func(t *testing.T) {
			t.Setenv("ADVERB_SHM", shm)
			t.Setenv("ADVERB_SHARDS", "4")
			name := loopback(t) + "@" + loopAddr(50)
			a, b := must(verbs.Open(name)), must(verbs.Open(name))
			seed := newRand(t).Uint64()
			var wg sync.WaitGroup
			for i := range pairs {
				x, y := rdmatest.Connect(t, a, b)
				from, to := x.MR(size), y.MR(size)
				inbox := y.MR(8)
				random := rand.NewChaCha8([32]byte(bytes.Repeat(binary.BigEndian.AppendUint64(nil, seed+uint64(i)), 4)))
				wg.Go(func() {
					var wc [1]verbs.WC
					for k := range rounds {
						random.Read(from.Bytes())
						if _, err := y.QP.PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{inbox.SGE(0, 8)}}}); err != nil {
							t.Error(err)
							return
						}
						if _, err := x.QP.PostSend([]verbs.SendWR{
							{Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{from.SGE(0, size)}, Remote: to.Remote(0)},
							{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{from.SGE(0, 8)}},
						}); err != nil {
							t.Error(err)
							return
						}
						for _, cq := range []*verbs.CQ{y.CQ, x.CQ} {
							if _, err := cq.Wait(t.Context(), wc[:]); err != nil || wc[0].Err() != nil {
								t.Errorf("pair %d, round %d: %v, %v, want success", i, k, err, wc[0].Err())
								return
							}
						}
						if !slices.Equal(to.Bytes(), from.Bytes()) {
							t.Errorf("pair %d, round %d: the peer has other bytes than were sent, want the same", i, k)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// UD QPs are reached whatever their CQs are, since all are of the first shard.
func TestShardsDatagrams(t *testing.T) {
	t.Setenv("ADVERB_SHARDS", "2")
	d := must(verbs.Open(loopback(t) + "@" + loopAddr(51)))
	rdmatest.Connect(t, d, d)
	x, y := rdmatest.Datagrams(t, d, d)
	for _, e := range []*rdmatest.Endpoint{x, y} {
		from := map[*rdmatest.Endpoint]*rdmatest.Endpoint{x: y, y: x}[e]
		in, out := e.MR(verbs.GRHSize+8), from.MR(8)
		e.Recv(verbs.RecvWR{SGList: []verbs.SGE{in.SGE(0, verbs.GRHSize+8)}})
		from.Send(from.To(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{out.SGE(0, 8)}}))
		for _, cq := range []*verbs.CQ{from.CQ, e.CQ} {
			var wc [1]verbs.WC
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			if _, err := cq.Wait(ctx, wc[:]); err != nil || wc[0].Err() != nil {
				t.Errorf("%v, %v, want success", err, wc[0].Err())
			}
			cancel()
		}
	}
}

// TestShardsByEnvironment: ADVERB_SHARDS is taken, or refused with the values that it may have.
func TestShardsByEnvironment(t *testing.T) {
	byEnvironment(t, "ADVERB_SHARDS", "1 to 16", map[string]bool{"": true, "1": true, "16": true, "0": false, "17": false, "many": false})
}

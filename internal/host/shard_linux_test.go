//go:build !adverb_portable

package host

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// joinShards makes members that are shards of one device.
func joinShards(t *testing.T, i byte, n int) (ms []*member) {
	t.Helper()
	addr := testAddr(i)
	first := shareLoopback(t, addr)
	for k := range n {
		m := &member{netdev: first, got: make(chan string, 1<<16)}
		if k > 0 {
			m.netdev = first.Shard()
		}
		m.netdev.pool = newOutletPool()
		ms = append(ms, m)
	}
	for _, m := range ms {
		m.block = m.claim(t)
		var err error
		if m.link, err = m.netdev.Open(addr); err != nil {
			t.Fatal(err)
		}
		m.done.Go(m.receive)
	}
	return ms
}

// Each shard of a device gets the datagrams for its blocks. Until the kernel knows the blocks, the others hand them over, with no
// socket between.
func TestShards(t *testing.T) {
	ms := joinShards(t, 60, 3)
	everyone := func(n int) { exchange(t, ms, n) }
	everyone(0)
	settle(t, ms, everyone)
	for i, m := range ms {
		if n := m.netdev.pool.open.Load(); n != 0 {
			t.Errorf("shard %d has %d sockets to others, want none", i, n)
		}
	}
	for _, m := range ms {
		m.leave()
	}
}

// To other processes shards are processes.
func TestShardsAmongProcesses(t *testing.T) {
	ms := joinShards(t, 61, 3)
	ms = append(ms, join(t, testAddr(61)), join(t, testAddr(61)))
	everyone := func(n int) { exchange(t, ms, n) }
	everyone(0)
	settle(t, ms, everyone)
	for _, m := range ms {
		m.leave()
	}
}

// Nobody leaves a will to a further shard: that would be as good as gone with the first one's.
func TestShardsTakeNoWills(t *testing.T) {
	ms := joinShards(t, 62, 2)
	for i, want := range []error{nil, unix.ECONNREFUSED} {
		c, err := net.Dial("unixpacket", heirName(ms[i].block))
		if !errors.Is(err, want) {
			t.Errorf("a will for shard %d: %v, want %v", i, err, want)
		}
		if err == nil {
			c.Close()
		}
	}
	for _, m := range ms {
		m.leave()
	}
}

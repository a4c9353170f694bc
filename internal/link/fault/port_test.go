package fault

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
)

var addrA, addrB = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")

// TestPort: datagrams that pass ports one after the other leave at the rate of the slowest, in order, wait up to
// the buffer, and are marked by how much waits.
func TestPort(t *testing.T) {
	const size = 1000 - frameHeaders
	fast := NewPort(1, PortConfig{Rate: 100e6, Delay: time.Millisecond})
	slow := NewPort(1, PortConfig{Rate: 10e6, Delay: time.Millisecond, Buffer: 20_000, MarkFrom: 4000, MarkTo: 12_000, MarkMost: .5})
	q := NewQueue(0)
	p := NewPath(1, netip.Addr{}, netip.Addr{})
	route := NewRoutes(1, addrA, addrB, ByPort, [][]*Port{{fast, slow}})
	for i := range 40 {
		d := link.Datagram{Payload: make([]byte, size), TrafficClass: link.ECT0}
		d.Payload[0] = byte(i)
		p.Route(q, route, 0, &d)
	}
	var got []link.Datagram
	var batch [1]link.Datagram
	last := -1
	for {
		at, ok := q.Next()
		if !ok {
			break
		}
		q.Arrive(at)
		for q.Pop(batch[:]) > 0 {
			if n := int(batch[0].Payload[0]); n <= last {
				t.Errorf("datagram %d after %d, want them in order", n, last)
			} else {
				last = n
			}
			// The first takes 10 µs and 100 µs, and two cables.
			if want := 2*time.Millisecond + 10*time.Microsecond + time.Duration(len(got)+1)*100*time.Microsecond; at != want {
				t.Errorf("datagram %d is there at %v, want %v", last, at, want)
			}
			got = append(got, batch[0])
		}
	}
	s := slow.Stats(false)
	if s.Lost == 0 || s.Passed+s.Lost != 40 || int(s.Passed) != len(got) || s.Longest > 20_000 || s.Longest < 19_000 {
		t.Errorf("%d came, %+v; want those lost that the buffer has no room for", len(got), s)
	}
	marked := 0
	for i, d := range got {
		if d.TrafficClass == link.CE {
			marked++
			if i < 4 {
				t.Errorf("datagram %d is marked, want none with a short queue", i)
			}
		} else if i > 16 {
			t.Errorf("datagram %d is not marked, want all with a long queue", i)
		}
	}
	if uint64(marked) != s.Marked {
		t.Errorf("%d are marked, and the port has counted %d", marked, s.Marked)
	}
	if s := fast.Stats(true); s.Passed != 40 || s.Bytes != 40_000 || fast.Stats(false) != (PortStats{}) {
		t.Errorf("the fast port: %+v, want 40 datagrams, and zeros after a reset", s)
	}
}

// TestPortMTU: a port loses packets that are longer than its MTU, whichever the IP version, and counts them apart.
func TestPortMTU(t *testing.T) {
	for _, addr := range []string{"10.0.0.1", "fd00::1"} {
		headers := 28
		if strings.Contains(addr, ":") {
			headers = 48
		}
		port := NewPort(1, PortConfig{MTU: 1500})
		route := NewRoutes(1, addrA, addrB, ByPort, [][]*Port{{port}})
		q := NewQueue(0)
		p := NewPath(1, netip.Addr{}, netip.Addr{})
		for _, n := range []int{100, 1500 - headers, 1501 - headers, 4096} {
			p.Route(q, route, 0, &link.Datagram{Dst: netip.AddrPortFrom(netip.MustParseAddr(addr), 4791), Payload: make([]byte, n)})
		}
		if s := port.Stats(false); q.Len() != 2 || s.Passed != 2 || s.TooLong != 2 || s.Lost != 0 {
			t.Errorf("to %s: %d came, %+v; want two, and two that are too long", addr, q.Len(), s)
		}
	}
}

// TestRoutes: neighbouring source ports take each of four routes twice, a hash leads each port one way, and a switch
// that spreads packets has each route take a quarter.
func TestRoutes(t *testing.T) {
	const ports, each = 8, 500
	for how, want := range map[Spread]func(took [4]int, ways [ports]map[int]bool) bool{
		ByPort: func(took [4]int, ways [ports]map[int]bool) bool {
			for i := range ports - 4 {
				if len(ways[i]) != 1 || !maps.Equal(ways[i], ways[i+4]) {
					return false
				}
			}
			return took == [4]int{2 * each, 2 * each, 2 * each, 2 * each}
		},
		ByHash: func(took [4]int, ways [ports]map[int]bool) bool {
			used := 0
			for _, n := range took {
				if n%each != 0 {
					return false
				}
				used += min(n, 1)
			}
			return used > 1
		},
		ByPacket: func(took [4]int, ways [ports]map[int]bool) bool {
			for _, n := range took {
				if n < each*2*9/10 || n > each*2*11/10 {
					return false
				}
			}
			return true
		},
	} {
		var list [][]*Port
		for range 4 {
			list = append(list, []*Port{NewPort(1, PortConfig{Delay: time.Microsecond})})
		}
		routes := NewRoutes(3, addrA, addrB, how, list)
		p, q := NewPath(3, addrA, addrB), NewQueue(0)
		var took [4]int
		var ways [ports]map[int]bool
		for i := range ports {
			ways[i] = map[int]bool{}
			for range each {
				d := link.Datagram{Src: netip.AddrPortFrom(addrA, uint16(0xc000+i)), Dst: netip.AddrPortFrom(addrB, link.Port), Payload: make([]byte, 16)}
				p.Route(q, routes, 0, &d)
				for k := range list {
					if n := int(list[k][0].Stats(true).Passed); n > 0 {
						took[k] += n
						ways[i][k] = true
					}
				}
			}
		}
		if !want(took, ways) {
			t.Errorf("way %d of choosing: the routes took %v packets, the ports %v", how, took, ways)
		}
	}
}

// TestPortDown: a port that is down loses the datagrams that come to it, and neither those before nor those after.
func TestPortDown(t *testing.T) {
	for _, rate := range []int64{0, 1e6} {
		port := NewPort(1, PortConfig{Rate: rate, Delay: time.Millisecond})
		q, p := NewQueue(0), NewPath(1, addrA, addrB)
		route := NewRoutes(1, addrA, addrB, ByPort, [][]*Port{{port}})
		for i := range 9 {
			port.SetDown(i >= 3 && i < 6)
			d := link.Datagram{Payload: binary.BigEndian.AppendUint64(nil, uint64(i))}
			p.Route(q, route, 0, &d)
		}
		q.Arrive(time.Second)
		var batch [16]link.Datagram
		var got []uint64
		for _, d := range batch[:q.Pop(batch[:])] {
			got = append(got, binary.BigEndian.Uint64(d.Payload))
		}
		if want := []uint64{0, 1, 2, 6, 7, 8}; !slices.Equal(got, want) {
			t.Errorf("rate %d: %v arrived, want %v", rate, got, want)
		}
		if s := port.Stats(false); s.Passed != 6 || s.Lost != 3 {
			t.Errorf("rate %d: %+v, want 6 passed and 3 lost", rate, s)
		}
	}
}

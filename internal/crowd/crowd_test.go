package crowd

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// member is one of a model, with the numbers of the source and host that it counts for.
type member struct {
	Seat[*member]
	from         netip.Addr
	source, host string
}

// model is a crowd that looks at all its members.
type model struct {
	limit, share int
	lead         int
	members      []*member // the oldest first
}

// count returns how many members each source and each host has.
func (m *model) count() (of map[string]int) {
	of = map[string]int{}
	for _, x := range m.members {
		of[x.source]++
		if x.host != x.source {
			of[x.host]++
		}
	}
	return of
}

// room is Crowd.Room.
func (m *model) room(source, host string) (loser *member, ok bool) {
	of := m.count()
	inSource := func() (loser *member, ok bool) { // the oldest of the host of the source with the most
		if host == source {
			return nil, false
		}
		for _, x := range m.members {
			if x.source == source && of[x.host] >= of[host]+m.lead && (loser == nil || of[x.host] > of[loser.host]) {
				loser = x
			}
		}
		return loser, loser != nil
	}
	if of[source] >= m.share {
		return inSource()
	}
	if len(m.members) < m.limit {
		return nil, true
	}
	most := 0
	for _, n := range m.members {
		most = max(most, of[n.source])
	}
	if most < of[source]+m.lead {
		return inSource()
	}
	for _, x := range m.members { // of the sources with the most, the one whose oldest of the host with the most is the oldest
		if of[x.source] != most {
			continue
		}
		biggest := 0
		for _, y := range m.members {
			if y.source == x.source {
				biggest = max(biggest, of[y.host])
			}
		}
		if x.host == x.source || of[x.host] == biggest {
			return x, true
		}
	}
	panic("nobody has the most")
}

// A crowd agrees at each step with a model that looks at all its members.
func TestCrowd(t *testing.T) {
	const limit, share = 20, 9
	againstModel(t, New[*member](limit, share), &model{limit: limit, share: share, lead: 1})
	againstModel(t, NewReturning[*member](limit, share), &model{limit: limit, share: share, lead: 2})
}

func againstModel(t *testing.T, c *Crowd[*member], m *model) {
	const seed = 7
	rnd := rand.New(rand.NewPCG(seed, 0))
	for step := range 8_000 {
		x := &member{}
		if rnd.IntN(2) == 0 {
			x.from = netip.AddrFrom4([4]byte{10, 0, 0, byte(rnd.IntN(4))})
			x.source = fmt.Sprint(x.from)
			x.host = x.source
			if rnd.IntN(2) == 0 {
				x.from = netip.AddrFrom16(x.from.As16()) // the same host
			}
		} else {
			network, host := rnd.IntN(3), rnd.IntN(4)
			x.from = addr(fmt.Sprintf("2001:db8:0:%d::%d", network, host))
			x.source, x.host = fmt.Sprint("network ", network), x.from.String()
			if rnd.IntN(2) == 0 {
				x.from = x.from.WithZone("eth0")
			}
		}
		if n := len(m.members); n > 0 {
			switch i := rnd.IntN(n); rnd.IntN(6) {
			case 0, 1:
				m.members[i].Leave()
				m.members[i].Leave() // once more changes nothing
				m.members[i].Refresh()
				m.members = slices.Delete(m.members, i, i+1)
			case 2:
				y := m.members[i]
				y.Refresh()
				m.members = append(slices.Delete(m.members, i, i+1), y)
			}
		}
		loser, ok := m.room(x.source, x.host)
		got, gotOK := c.Room(x.from)
		if gotOK != ok || got != loser {
			t.Fatalf("seed %d, step %d: room for %v: got %v, %v, want %v, %v", seed, step, x.from, got, gotOK, loser, ok)
		}
		if ok {
			if loser != nil {
				loser.Leave()
				m.members = slices.DeleteFunc(m.members, func(y *member) bool { return y == loser })
			}
			c.Take(&x.Seat, x.from, x)
			m.members = append(m.members, x)
		}
		of := m.count()
		ofSource, ofHost := c.Of(x.from)
		oldest, _ := c.Oldest(x.from)
		i := slices.IndexFunc(m.members, func(y *member) bool { return y.host == x.host })
		if c.Len() != len(m.members) || ofSource != of[x.source] || ofHost != of[x.host] || len(c.sources) != len(of) || (oldest == nil) != (i < 0) ||
			i >= 0 && oldest != m.members[i] {
			t.Fatalf("seed %d, step %d: got %d members of %d sources, of %v %d and %d, the oldest %v, want %d members of %d, %d and %d", seed, step,
				c.Len(), len(c.sources), x.from, ofSource, ofHost, oldest, len(m.members), len(of), of[x.source], of[x.host])
		}
		others := New[*member](m.limit, m.limit) // of whom some are in the crowd too, by other seats
		for range rnd.IntN(3) {
			if n := len(m.members); n > 0 {
				y := m.members[rnd.IntN(n)]
				others.Take(new(Seat[*member]), y.from, y)
			}
		}
		var next *member
		fewest := func(y *member) []int {
			ofSource, ofHost := others.Of(y.from)
			return []int{ofSource, ofHost}
		}
		for _, y := range m.members {
			if next == nil || slices.Compare(fewest(y), fewest(next)) < 0 {
				next = y
			}
		}
		if got, ok := c.Next(others); got != next || ok != (next != nil) {
			t.Fatalf("seed %d, step %d: the next is %v, %v, want %v", seed, step, got, ok, next)
		}
		if step%100 == 0 {
			all := slices.Collect(c.All())
			if len(all) != len(m.members) || slices.ContainsFunc(m.members, func(y *member) bool { return !slices.Contains(all, y) }) {
				t.Fatalf("seed %d, step %d: All has %d members, want all %d", seed, step, len(all), len(m.members))
			}
		}
	}
}

// fill has a member come from each address, for which another one may have to leave.
func fill(c *Crowd[*member], from ...string) {
	for _, a := range from {
		x := &member{from: addr(a)}
		loser, ok := c.Room(x.from)
		if loser != nil {
			loser.Leave()
		}
		if ok {
			c.Take(&x.Seat, x.from, x)
		}
	}
}

// Any number of addresses of one IPv6 network have the share of one source. A neighbor in the network takes a place of
// the host with the most.
func TestNetwork(t *testing.T) {
	c := New[*member](8, 4)
	for i := range 100 {
		fill(c, fmt.Sprintf("2001:db8::%x", 0x1000+i))
	}
	if ofSource, _ := c.Of(addr("2001:db8::1")); ofSource != 4 || c.Len() != 4 {
		t.Fatalf("100 addresses of a network have %d of %d places, want 4 of 4", ofSource, c.Len())
	}
	c = New[*member](8, 4)
	fill(c, "2001:db8::a", "2001:db8::b", "2001:db8::a", "2001:db8::a")
	if loser, ok := c.Room(addr("2001:db8::c")); !ok || loser.from != addr("2001:db8::a") {
		t.Errorf("for a neighbor %v leaves, %v, want one of the host with the most", loser, ok)
	}
	if _, ok := c.Room(addr("2001:db8::a")); ok {
		t.Error("the host with the most gets another place of its network")
	}
	if loser, ok := c.Room(addr("2001:db8:0:1::a")); loser != nil || !ok {
		t.Errorf("for a host of another network %v leaves, %v, want nobody, since there is room", loser, ok)
	}
}

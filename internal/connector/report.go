package connector

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/adverb-rdma/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

var (
	_ verbs.Manager = (*ibConnector)(nil)
	_ verbs.Manager = (*tcpConnector)(nil)
)

// Counters implements verbs.Manager.
func (c *ibConnector) Counters() verbs.Counters {
	c.mu.Lock()
	s, shrunk := c.machine.Stats(), c.shrunk
	c.mu.Unlock()
	var list verbs.Counters
	for _, group := range []struct {
		name   string
		counts *cm.Counts
	}{{"cm_tx_msgs_", &s.Sent}, {"cm_tx_retries_", &s.Repeated}, {"cm_rx_msgs_", &s.Received}, {"cm_rx_duplicates_", &s.Ignored}} {
		for attr := wire.CMREQ; attr <= wire.CMAPR; attr++ {
			list = append(list, verbs.Counter{Name: group.name + strings.ToLower(attr.String()), Value: group.counts.Of(attr)})
		}
	}
	unknown := uint64(0)
	for _, n := range s.Unknown {
		unknown += n
	}
	return append(list,
		verbs.Counter{Name: "cm_rx_unknown", Value: unknown},
		verbs.Counter{Name: "cm_rx_malformed", Value: s.Malformed},
		verbs.Counter{Name: "cm_rx_foreign", Value: s.Foreign},
		verbs.Counter{Name: "cm_rx_refused", Value: s.Refused},
		verbs.Counter{Name: "cm_tx_dropped", Value: s.Dropped},
		verbs.Counter{Name: "cm_tx_smaller_mtu", Value: shrunk},
		verbs.Counter{Name: "cm_evicted", Value: s.Evicted},
		verbs.Counter{Name: "cm_conns", Value: uint64(s.Conns)},
		verbs.Counter{Name: "cm_listeners", Value: uint64(s.Listeners)},
		verbs.Counter{Name: "cm_requests", Value: uint64(s.Requests)},
	)
}

// CMIDs implements verbs.Manager.
func (c *ibConnector) CMIDs() (list []verbs.CMID) {
	c.mu.Lock()
	c.machine.Each(func(ib *cm.Conn) {
		id := verbs.CMID{QPN: verbs.QPN(ib.QPN()), Type: verbs.QPTypeRC, State: ib.State().String()}
		if ib.UC() {
			id.Type = verbs.QPTypeUC
		}
		id.Local, id.Remote = ends(ib.User, ib.Path())
		list = append(list, id)
	}, func(s *cm.SIDR) {
		id := verbs.CMID{Type: verbs.QPTypeUD, State: s.State()}
		id.Local, id.Remote = ends(s.User, s.Path())
		list = append(list, id)
	}, func(l *cm.Listener) {
		id := verbs.CMID{State: "LISTEN", Local: netip.AddrPortFrom(l.Local(), 0)}
		if p, ok := l.User.(*ibPort); ok {
			id.Local = p.name.At()
		}
		list = append(list, id)
	})
	c.mu.Unlock()
	sortCMIDs(list)
	return list
}

func sortCMIDs(list []verbs.CMID) {
	slices.SortFunc(list, func(a, b verbs.CMID) int {
		return cmp.Or(a.Local.Compare(b.Local), a.Remote.Compare(b.Remote), cmp.Compare(a.QPN, b.QPN))
	})
}

// ends returns the addresses of the two ends. The ports are known once the request was read.
func ends(user any, p cm.Path) (local, remote netip.AddrPort) {
	if conn, ok := user.(*ibConn); ok {
		return conn.local, conn.remote
	}
	return netip.AddrPortFrom(p.Local, 0), netip.AddrPortFrom(p.Remote, 0)
}

// Counters implements verbs.Manager. Messages are not counted: TCP sees to them.
func (c *tcpConnector) Counters() verbs.Counters {
	conns, ports := c.listed()
	requests := uint64(0)
	for _, conn := range conns {
		conn.mu.Lock()
		if conn.state == tcpRequested {
			requests++
		}
		conn.mu.Unlock()
	}
	return verbs.Counters{
		{Name: "cm_rx_refused", Value: c.refused.Load()},
		{Name: "cm_conns", Value: uint64(len(conns))},
		{Name: "cm_listeners", Value: uint64(len(ports))},
		{Name: "cm_requests", Value: requests},
	}
}

// CMIDs implements verbs.Manager.
func (c *tcpConnector) CMIDs() (list []verbs.CMID) {
	conns, ports := c.listed()
	for _, conn := range conns {
		conn.mu.Lock()
		list = append(list, verbs.CMID{
			QPN: conn.qpn, Type: verbs.QPTypeRC, State: tcpStates[conn.state], Local: conn.local, Remote: conn.remote,
		})
		conn.mu.Unlock()
	}
	for _, p := range ports {
		list = append(list, verbs.CMID{State: "LISTEN", Local: p.at})
	}
	sortCMIDs(list)
	return list
}

// listed returns the connections and listeners of the moment. Each may end before the caller looks at it.
func (c *tcpConnector) listed() ([]*tcpConn, []*tcpPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.conns)), slices.Collect(maps.Keys(c.ports))
}

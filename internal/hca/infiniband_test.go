package hca

import (
	"testing"
	"testing/synctest"

	subnet "github.com/adverb-rdma/adverb/internal/fabric"
	"github.com/adverb-rdma/adverb/internal/ibnet"
	"github.com/adverb-rdma/adverb/verbs"
)

// Whether a QP of a partition takes a packet of a partition. Of two members one must be a full one.
func TestMatchesPKey(t *testing.T) {
	for _, c := range []struct {
		own, packet uint16
		takes       bool
	}{
		{0xffff, 0xffff, true}, {0xffff, 0x7fff, true}, {0xffff, 0x8001, false}, {0, 0, false}, {0, 0x8000, false}, {0, 0xffff, false},
		{0x8001, 0x8001, true}, {0x8001, 0x0001, true}, {0x0001, 0x8001, true}, {0x0001, 0x0001, false}, {0x8001, 0x8002, false}, {0x8001, 0xffff, false},
	} {
		if got := matches(c.own, c.packet); got != c.takes {
			t.Errorf("a QP of partition %#04x takes packets of %#04x: %v, want %v", c.own, c.packet, got, c.takes)
		}
	}
}

// A QP's P_Key is what the table has at its index now: the subnet manager may write another one, or none.
func TestPKeyTableChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := ibnet.New(subnet.New())
		var ports [2]*subnet.Port
		net.Do(func(f *subnet.Fabric) {
			s := f.Switch("switch", len(ports))
			for i := range ports {
				ports[i] = f.Adapter("host")
				if err := f.Connect(ports[i], s.Port(1+i)); err != nil {
					t.Fatal(err)
				}
			}
			ports[0].Manager(0, 0)
		})
		partition := func(pkeys ...uint16) {
			t.Helper()
			net.Do(func(f *subnet.Fabric) {
				f.Partitions = nil
				for _, k := range pkeys {
					f.Partitions = append(f.Partitions, subnet.Partition{PKey: k, Members: ports[:]})
				}
				f.Poll()
			})
			synctest.Wait()
		}
		a, b := openDevice(t, net.Netdev("ib0", ports[0])), openDevice(t, net.Netdev("ib1", ports[1]))
		partition(0x8001)
		x, y := newEnd(t, a, options{typ: verbs.QPTypeUD}), newEnd(t, b, options{typ: verbs.QPTypeUD})
		for _, e := range []*end{x, y} {
			e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: 1, PKeyIndex: 1, QKey: 1}, verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey))
			e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR}, verbs.MaskState))
			e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTS}, verbs.MaskState|verbs.MaskSQPSN))
		}
		port, err := b.QueryPort(1)
		if err != nil {
			t.Fatal(err)
		}
		ah, err := x.pd.CreateAH(verbs.AHAttr{DLID: port.LID})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			table   []uint16
			arrives bool
		}{{[]uint16{0x8001}, true}, {[]uint16{0x8002}, true}, {nil, false}, {[]uint16{0x8001}, true}} {
			partition(c.table...)
			before := impl(b).port.badPKeys.load()
			if k := x.impl().pkey(); len(c.table) > 0 && k != c.table[0] || len(c.table) == 0 && k != 0 {
				t.Errorf("with %#04x in the table, packets have P_Key %#04x", c.table, k)
			}
			dst := y.mr(48)
			y.recv(verbs.RecvWR{SGList: []verbs.SGE{dst.SGE(0, 48)}})
			x.send(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendInline, InlineData: []byte("x"), AH: ah, RemoteQPN: y.qp.QPN(), RemoteQKey: 1})
			synctest.Wait()
			var wcs [1]verbs.WC
			if n, _ := y.cq.Poll(wcs[:]); (n == 1) != c.arrives || impl(b).port.badPKeys.load() > before == c.arrives {
				t.Errorf("with %#04x in the table %d datagrams arrive, and the port drops %d", c.table, n, impl(b).port.badPKeys.load()-before)
			}
		}
	})
}

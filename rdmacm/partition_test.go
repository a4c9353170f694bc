package rdmacm_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// partition is the P_Key of two of the devices of inPartition.
const partition = 0x8001

// inPartition makes devices on InfiniBand, of which the first two are in a partition.
func inPartition(t *testing.T) (a, b, stranger *verbs.Device) {
	t.Helper()
	n := rdmatest.New(t, rdmatest.InfiniBand())
	a, b, stranger = n.Device(), n.Device(), n.Device()
	n.SetPartition(partition, a, b)
	for _, d := range []*verbs.Device{a, b} {
		for {
			e, err := d.NextEvent(patience(t))
			if err != nil {
				t.Fatal(err)
			}
			if e.Type == verbs.EventPKeyChange {
				break
			}
		}
	}
	return a, b, stranger
}

// pkeyOf returns the P_Key of a QP.
func pkeyOf(t *testing.T, d *verbs.Device, qp *verbs.QP) verbs.PKey {
	t.Helper()
	attr, _, err := qp.Query()
	if err != nil {
		t.Fatal(err)
	}
	k, err := d.PKey(1, attr.PKeyIndex)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// gidAddr is a device's GID on InfiniBand with a service.
func gidAddr(t *testing.T, d *verbs.Device, service uint64) rdmacm.IBAddr {
	t.Helper()
	g, err := d.GID(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	return rdmacm.IBAddr{GID: g.GID, Service: service}
}

// TestPartition connects in a partition: the path, the request and the QPs of both ends are of it. A port outside finds no
// path.
func TestPartition(t *testing.T) {
	a, b, stranger := inPartition(t)
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{b}}).ListenIB(gidAddr(t, b, 0))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, pkey := range []verbs.PKey{0, partition} {
		want := pkey
		if pkey == 0 {
			want = 0xffff
		}
		to := l.AddrIB()
		to.PKey = pkey
		done := accept(t, l, nil)
		x, err := (&rdmacm.Dialer{Devices: []*verbs.Device{a}}).DialIB(patience(t), to, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		y := <-done
		if y.err != nil {
			t.Fatal(y.err)
		}
		defer y.conn.Close()
		if p, err := x.ID().Path(); err != nil || p.PKey != want {
			t.Errorf("P_Key %v: the path has %v, %v", pkey, p.PKey, err)
		}
		if here, there := pkeyOf(t, a, x.QP()), pkeyOf(t, b, y.conn.QP()); here != want || there != want {
			t.Errorf("P_Key %v: the QPs have %v and %v", pkey, here, there)
		}
	}
	to := l.AddrIB()
	to.PKey = partition
	if _, err := (&rdmacm.Dialer{Devices: []*verbs.Device{stranger}}).DialIB(patience(t), to, nil); err == nil || !strings.Contains(err.Error(), "no such record") {
		t.Errorf("from outside the partition: %v", err)
	}
}

// TestPartitionDatagrams resolves a QP in a partition, and joins a group there.
func TestPartitionDatagrams(t *testing.T) {
	a, b, stranger := inPartition(t)
	group := netip.MustParseAddr("ff12::7")
	ids := map[*verbs.Device]*rdmacm.ID{}
	var joined rdmacm.Event
	for _, d := range []*verbs.Device{a, b, stranger} {
		s := newScript(t, d)
		id := s.id(rdmacm.PortSpaceUDP)
		to := gidAddr(t, b, rdmacm.PortSpaceUDP.Service(7))
		if d != stranger {
			to.PKey = partition
		}
		s.ok(id.ResolveIB(rdmacm.IBAddr{}, to))
		s.next(rdmacm.EventAddrResolved)
		s.ok(id.ResolveRoute())
		s.next(rdmacm.EventRouteResolved)
		s.ok(id.CreateQP(nil, smallQP))
		s.ok(id.JoinMulticast(group))
		if d == stranger {
			s.next(rdmacm.EventMulticastError)
			continue
		}
		joined = s.next(rdmacm.EventMulticastJoin)
		ids[d] = id
		if k := pkeyOf(t, d, id.QP()); k != partition {
			t.Errorf("%s: the QP has P_Key %v", d.Name(), k)
		}
	}
	mr, err := ids[b].PD().AllocMR(128, verbs.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer mr.Close()
	if _, err = ids[b].QP().PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{mr.SGE(0, 128)}}}); err != nil {
		t.Fatal(err)
	}
	ah, err := ids[a].PD().CreateAH(joined.UD.AH)
	if err != nil {
		t.Fatal(err)
	}
	defer ah.Close()
	if _, err := ids[a].QP().PostSend([]verbs.SendWR{{
		Op: verbs.OpSend, Flags: verbs.SendInline, InlineData: []byte("to all"), AH: ah, RemoteQPN: joined.UD.QPN, RemoteQKey: joined.UD.QKey,
	}}); err != nil {
		t.Fatal(err)
	}
	if wc := wait(t, ids[b].QP().RecvCQ()); string(mr.Bytes()[verbs.GRHSize:wc.ByteLen]) != "to all" {
		t.Errorf("got %q, want to all", mr.Bytes()[verbs.GRHSize:wc.ByteLen])
	}
}

package verbs_test

import (
	"slices"
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

func TestDeviceQueries(t *testing.T) {
	net := rdmatest.New(t)
	a, b := net.Device(), net.Device()
	attr := must(b.Query())(t)
	if attr.PhysPortCnt != 1 || attr.NodeGUID != b.Info().NodeGUID || attr.NodeGUID == a.Info().NodeGUID || attr.AtomicCap != verbs.AtomicGlob {
		t.Errorf("attributes %+v, want one port, ATOMIC_GLOB and the GUID of Info, which is no other device's", attr)
	}
	port := must(b.QueryPort(1))(t)
	if port.State != verbs.PortActive || port.PhysState != verbs.PhysLinkUp || port.ActiveMTU != verbs.MTU4096 || port.LinkLayer != verbs.LinkLayerEthernet {
		t.Errorf("port %+v, want it active and up, with MTU_4096 on Ethernet", port)
	}
	gids := must(b.GIDs(1))(t)
	want := []verbs.GIDEntry{
		{GID: must(verbs.ParseGID("10.0.0.2"))(t), Index: 0, Port: 1, Type: verbs.GIDTypeRoCEv2, Netdev: "sim1"},
		{GID: must(verbs.ParseGID("fd00::2"))(t), Index: 1, Port: 1, Type: verbs.GIDTypeRoCEv2, Netdev: "sim1"},
	}
	if !slices.Equal(gids, want) {
		t.Errorf("GIDs %+v, want %+v", gids, want)
	}
	if e := must(b.GID(1, 1))(t); e != want[1] {
		t.Errorf("GID 1 is %+v, want %+v", e, want[1])
	}
	for _, i := range []int{-1, 2, port.GIDTableLen - 1, port.GIDTableLen, 1 << 30} {
		_, err := b.GID(1, i)
		wantErr(t, "GID", err, verbs.ErrNotFound, "query gid of device sim1")
	}
	if k := must(b.PKey(1, 0))(t); k != 0xffff {
		t.Errorf("P_Key %v, want 0xffff", k)
	}
	_, err := b.PKey(1, 1)
	wantErr(t, "PKey", err, verbs.ErrNotFound, "query pkey of device sim1", "index 1")
	for _, p := range []int{-1, 0, 2} {
		_, err = b.QueryPort(p)
		wantErr(t, "QueryPort", err, verbs.ErrNotFound, "query port of device sim1", "ports are 1 to 1")
		_, err = b.GID(p, 0)
		wantErr(t, "GID", err, verbs.ErrNotFound, "ports are 1 to 1")
		_, err = b.GIDs(p)
		wantErr(t, "GIDs", err, verbs.ErrNotFound, "ports are 1 to 1")
		_, err = b.PKey(p, 0)
		wantErr(t, "PKey", err, verbs.ErrNotFound, "ports are 1 to 1")
	}
}

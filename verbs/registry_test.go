package verbs_test

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// shelf is a provider of the simulated devices that a test puts on it.
type shelf struct {
	mu   sync.Mutex
	devs []*verbs.Device
	fail error
}

func (s *shelf) Devices() (all []verbs.DeviceInfo, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.devs {
		all = append(all, d.Info())
	}
	return all, s.fail
}

func (s *shelf) Open(name string) (verbs.ProviderDevice, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.devs {
		if d.Name() == name {
			return d.Provider(), nil
		}
	}
	if s.fail != nil {
		return nil, s.fail
	}
	return nil, verbs.ErrNotFound
}

func (s *shelf) set(err error, devs ...*verbs.Device) {
	s.mu.Lock()
	s.devs, s.fail = devs, err
	s.mu.Unlock()
}

// Registration lasts as long as the process, so under -count the first run alone sees none.
var (
	upper, lower shelf
	registerOnce sync.Once
)

func TestOpen(t *testing.T) {
	registerOnce.Do(func() {
		_, err := verbs.Open("soft_eth0")
		wantErr(t, "without providers", err, verbs.ErrNotFound, "open device soft_eth0", "no provider is registered: import one", "provider/soft")
		verbs.Register("upper", &upper)
		verbs.Register("lower", &lower)
		wantPanic(t, "a second Register", func() { verbs.Register("lower", &lower) }, "lower")
	})
	net := rdmatest.New(t)
	a, b := net.Device(), net.Device()
	upper.set(nil, a)
	lower.set(nil, b)

	infos := must(verbs.Devices())(t)
	if len(infos) != 2 || infos[0].Name != "sim1" || infos[0].Provider != "lower" || infos[1].Name != "sim0" || infos[1].Provider != "upper" {
		t.Errorf("devices in the order of their providers' names: %+v", infos)
	}
	d := must(verbs.Open("sim0"))(t)
	if d.Name() != "sim0" || d.Provider() != a.Provider() || d.Info().NodeType != "CA" || d.Info().Transport != verbs.TransportIB {
		t.Errorf("opened %+v", d.Info())
	}
	_, err := verbs.Open("sim9")
	wantErr(t, "unknown name", err, verbs.ErrNotFound, "open device sim9: no such device", "sim0 (upper)", "sim1 (lower)")

	broken := errors.New("broken")
	lower.set(broken)
	_, err = verbs.Open("sim9")
	wantErr(t, "broken provider", err, broken, "open device sim9: broken")
	_, err = verbs.Devices()
	wantErr(t, "broken provider", err, broken, "list devices of provider lower: broken")
}

func TestDeviceQueries(t *testing.T) {
	net := rdmatest.New(t)
	a, b := net.Device(), net.Device()
	attr := must(b.Query())(t)
	if attr.PhysPortCnt != 1 || attr.NodeGUID != b.Info().NodeGUID || attr.NodeGUID == a.Info().NodeGUID || attr.AtomicCap != verbs.AtomicGlob {
		t.Errorf("%+v", attr)
	}
	port := must(b.QueryPort(1))(t)
	if port.State != verbs.PortActive || port.PhysState != verbs.PhysLinkUp || port.ActiveMTU != verbs.MTU4096 || port.LinkLayer != verbs.LinkLayerEthernet {
		t.Errorf("%+v", port)
	}
	gids := must(b.GIDs(1))(t)
	want := []verbs.GIDEntry{
		{GID: must(verbs.ParseGID("10.0.0.2"))(t), Index: 0, Port: 1, Type: verbs.GIDTypeRoCEv2, Netdev: "sim1"},
		{GID: must(verbs.ParseGID("fd00::2"))(t), Index: 1, Port: 1, Type: verbs.GIDTypeRoCEv2, Netdev: "sim1"},
	}
	if !slices.Equal(gids, want) {
		t.Errorf("GIDs %+v", gids)
	}
	if e := must(b.GID(1, 1))(t); e != want[1] {
		t.Errorf("GID 1 is %+v", e)
	}
	for _, i := range []int{-1, 2, port.GIDTableLen - 1, port.GIDTableLen, 1 << 30} {
		_, err := b.GID(1, i)
		wantErr(t, "GID", err, verbs.ErrNotFound, "query gid of device sim1")
	}
	if k := must(b.PKey(1, 0))(t); k != 0xffff {
		t.Errorf("P_Key %v", k)
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

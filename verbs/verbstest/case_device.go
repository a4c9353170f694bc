package verbstest

import (
	"slices"

	"github.com/adverb-rdma/adverb/verbs"
)

// both makes a case that each side plays alone, on its own device.
func both(name string, needs Capability, f func(*Side)) Case {
	return Case{Name: name, Needs: needs, A: f, B: f}
}

var deviceCases = []Case{
	both("device/attributes", 0, func(s *Side) {
		if s.Device.Name() == "" || s.Device.Info().Name != s.Device.Name() {
			s.Errorf("name %q, and %q in Info; want one name, and not an empty one", s.Device.Name(), s.Device.Info().Name)
		}
		a := s.attr()
		for _, l := range []struct {
			name     string
			got, min int
		}{
			{"max_qp", a.MaxQP, 8}, {"max_qp_wr", a.MaxQPWR, 64}, {"max_sge", a.MaxSGE, 1}, {"max_cq", a.MaxCQ, 8},
			{"max_cqe", a.MaxCQE, 128}, {"max_mr", a.MaxMR, 8}, {"max_pd", a.MaxPD, 2},
			{"phys_port_cnt", a.PhysPortCnt, s.Port}, {"max_qp_rd_atom", a.MaxQPRdAtom, 1}, {"max_qp_init_rd_atom", a.MaxQPInitRdAtom, 1},
		} {
			if l.got < l.min {
				s.Errorf("%s is %d, and the suite needs %d", l.name, l.got, l.min)
			}
		}
		if a.NodeGUID == (verbs.GUID{}) || a.NodeGUID != s.Device.Info().NodeGUID {
			s.Errorf("node GUID %v, and %v in Info; want one, and not 0", a.NodeGUID, s.Device.Info().NodeGUID)
		}
		if a.MaxMRSize < 1<<20 {
			s.Errorf("max_mr_size is %d, want 1 MiB at least", a.MaxMRSize)
		}
		if a.MaxInline < verbs.MaxInlineUnknown {
			s.Errorf("MaxInline is %d, want a number of bytes or MaxInlineUnknown (%d)", a.MaxInline, verbs.MaxInlineUnknown)
		}
		if g := a.Guarantees &^ verbs.AllGuarantees; g != 0 {
			s.Errorf("guarantees %v, want none but those of AllGuarantees", g)
		}
	}),
	both("device/port", 0, func(s *Side) {
		a, err := s.Device.QueryPort(s.Port)
		s.must(err)
		want(s, "state", a.State, verbs.PortActive)
		if !a.ActiveMTU.Valid() || !a.MaxMTU.Valid() || a.ActiveMTU > a.MaxMTU {
			s.Errorf("active MTU %v, max MTU %v; want two MTUs, the first not larger", a.ActiveMTU, a.MaxMTU)
		}
		if a.MaxMsgSize < 1<<20 || a.GIDTableLen <= s.GIDIndex {
			s.Errorf("max_msg_sz %d, want 1 MiB at least; gid_tbl_len %d, want more than %d", a.MaxMsgSize, a.GIDTableLen, s.GIDIndex)
		}
		switch {
		case a.LinkLayer == verbs.LinkLayerInfiniBand && a.LID == 0:
			s.Errorf("an active InfiniBand port has LID 0, want one that peers can reach")
		case a.LinkLayer == verbs.LinkLayerEthernet && a.LID != 0:
			s.Errorf("a port on Ethernet has LID %#x, want 0", a.LID)
		}
		dev := s.attr()
		for _, port := range []int{-1, 0, dev.PhysPortCnt + 1} {
			_, err := s.Device.QueryPort(port)
			s.wantErr("QueryPort", err, verbs.ErrNotFound)
			_, err = s.Device.GID(port, 0)
			s.wantErr("GID", err, verbs.ErrNotFound)
			_, err = s.Device.PKey(port, 0)
			s.wantErr("PKey", err, verbs.ErrNotFound)
		}
	}),
	both("device/gids", 0, func(s *Side) {
		g, err := s.Device.GID(s.Port, s.GIDIndex)
		s.must(err)
		if g.GID.IsZero() || g.Index != s.GIDIndex || g.Port != s.Port {
			s.Errorf("entry %d of port %d is %+v, want a GID with that index and port", s.GIDIndex, s.Port, g)
		}
		all, err := s.Device.GIDs(s.Port)
		s.must(err)
		if !slices.Contains(all, g) {
			s.Errorf("GIDs has %+v, want %+v among them", all, g)
		}
		port, err := s.Device.QueryPort(s.Port)
		s.must(err)
		for _, i := range []int{-1, port.GIDTableLen} {
			_, err := s.Device.GID(s.Port, i)
			s.wantErr("GID", err, verbs.ErrNotFound)
		}
	}),
	both("device/pkeys", 0, func(s *Side) {
		port := s.port()
		if s.Device.Info().Transport != verbs.TransportIWARP { // which has no partitions
			k, err := s.Device.PKey(s.Port, 0)
			s.must(err)
			if n := s.attr().MaxPKeys; k&0x7fff == 0 || n < 1 || port.PKeyTableLen < 1 {
				s.Errorf("the first of %d P_Keys is %v, max_pkeys is %d; want one at least, with a partition's number", port.PKeyTableLen, k, n)
			}
		}
		for _, i := range []int{-1, port.PKeyTableLen} {
			_, err := s.Device.PKey(s.Port, i)
			s.wantErr("PKey", err, verbs.ErrNotFound)
		}
	}),
}

package devinfo

import (
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/rdmatest"
)

// transcript is the port that a tutorial shows of a card on InfiniBand, whose host runs the subnet manager.
const transcript = `		port:	1
			state:			PORT_ACTIVE (4)
			max_mtu:		4096 (5)
			active_mtu:		4096 (5)
			sm_lid:			1
			port_lid:		1
			port_lmc:		0x00
			link_layer:		InfiniBand

`

func TestDevinfoInfiniBand(t *testing.T) {
	net := rdmatest.New(t, rdmatest.InfiniBand())
	dev := net.Device()
	r := &report{info: dev.Info(), ports: []portinfo{{number: 1}}}
	var err error
	if r.attr, err = dev.Query(); err != nil {
		t.Fatal(err)
	}
	p := &r.ports[0]
	if p.attr, err = dev.QueryPort(1); err != nil {
		t.Fatal(err)
	}
	if p.gids, err = dev.GIDs(1); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	r.print(&got, false)
	at := strings.Index(got.String(), "\t\tport:")
	tooltest.DiffLines(t, got.String()[max(at, 0):], transcript)
	got.Reset()
	r.print(&got, true)
	for _, line := range []string{
		"transport:\t\t\tInfiniBand (0)", "max_vl_num:\t\t8 (4)", "pkey_tbl_len:\t\t16", "subnet_timeout:\t\t18", "active_width:\t\t4X (2)", "active_speed:\t\t25.0 Gbps (32)",
		"phys_state:\t\tLINK_UP (5)", "GID[  0]:\t\tfe80:0000:0000:0000:0200:0000:0000:0201\n", "port_cap_flags:\t\t0x0201084a",
	} {
		if !strings.Contains(got.String(), line) {
			t.Errorf("no %q in\n%s", line, got.String())
		}
	}
}

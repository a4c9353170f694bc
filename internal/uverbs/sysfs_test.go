//go:build linux

package uverbs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/uapi"
)

// TestFiles: sysfs tells of a device as the commands do.
func TestFiles(t *testing.T) {
	dev := devices(t)[0]
	gid, err := dev.GID(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	files, err := Node{Name: "rxe_eth0", Index: 3}.Files(dev)
	if err != nil {
		t.Fatal(err)
	}
	p := newProgram(t, dev)
	var port uapi.QueryPortResp
	p.do(uapi.CmdQueryPort, uapi.QueryPort{PortNum: 1}, nil, &port, nil)
	for name, want := range map[string]string{
		"/sys/class/infiniband_verbs/uverbs3/dev":                                       "231:195\n",
		"/sys/class/infiniband_verbs/uverbs3/ibdev":                                     "rxe_eth0\n",
		"/sys/class/infiniband_verbs/uverbs3/abi_version":                               "2\n",
		"/sys/class/infiniband/rxe_eth0/device/infiniband_verbs/uverbs3/dev":            "231:195\n",
		"/sys/class/infiniband/rxe_eth0/ports/1/state":                                  "4: ACTIVE\n",
		"/sys/class/infiniband/rxe_eth0/ports/1/phys_state":                             "5: LinkUp\n",
		"/sys/class/infiniband/rxe_eth0/ports/1/link_layer":                             "Ethernet\n",
		"/sys/class/infiniband/rxe_eth0/ports/1/pkeys/0":                                "0xffff\n",
		"/sys/class/infiniband/rxe_eth0/ports/1/gids/0":                                 words(gid.GID[:]),
		"/sys/class/infiniband/rxe_eth0/ports/1/gid_attrs/types/0":                      "RoCE v2\n",
		fmt.Sprintf("/sys/class/infiniband/rxe_eth0/ports/1/gids/%d", port.GIDTblLen-1): strings.Repeat("0000:", 7) + "0000\n",
	} {
		if got := files[name]; got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if _, ok := files[fmt.Sprintf("/sys/class/infiniband/rxe_eth0/ports/1/gids/%d", port.GIDTblLen)]; ok {
		t.Errorf("sysfs has a GID beyond the %d that QUERY_PORT tells of", port.GIDTblLen)
	}
	if got := words([]byte{0xfe, 0x80, 0, 1}); got != "fe80:0001\n" {
		t.Errorf("words: got %q", got)
	}
	if n := NodeName("soft_eth0"); n != "rxe_eth0" {
		t.Errorf("soft_eth0 is shown as %s, want rxe_eth0", n)
	}
}

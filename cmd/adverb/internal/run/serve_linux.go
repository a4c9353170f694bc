//go:build amd64 || arm64

package run

import (
	"fmt"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/supervisor"
	"github.com/adverb-rdma/adverb/internal/uverbs"
	"github.com/adverb-rdma/adverb/verbs"
)

// netlinkRDMA is NETLINK_RDMA. Where it is not, libibverbs looks into sysfs.
const netlinkRDMA = 20

var filter = supervisor.Filter{Rules: []supervisor.Rule{{
	Number: unix.SYS_SOCKET,
	If:     []supervisor.Arg{{Index: 0, Mask: ^uint32(0), Value: unix.AF_NETLINK}, {Index: 2, Mask: ^uint32(0), Value: netlinkRDMA}},
	Errno:  unix.EPROTONOSUPPORT,
}}}

// Serve is the supervisor's process of a run.
func Serve(s *supervisor.Session) error {
	t, err := supervisor.NewTree("/sys/class/infiniband_verbs", "/sys/class/infiniband", "/sys/class/misc/rdma_cm", "/dev/infiniband")
	if err != nil {
		return err
	}
	if err := show(t, s.Program.Options); err != nil {
		return err
	}
	l, err := s.Start(filter, t)
	if err != nil {
		return err
	}
	sup, err := supervisor.New(l, supervisor.Config{Tree: t, Logf: logf})
	if err != nil {
		return err
	}
	return sup.Serve()
}

// logf tells of what is odd, if ADVERB_RUN_LOG asks for it.
func logf(format string, args ...any) {
	if os.Getenv("ADVERB_RUN_LOG") != "" {
		fmt.Fprintf(os.Stderr, "adverb run: "+format+"\n", args...)
	}
}

// show makes the files and nodes of the devices.
func show(t *supervisor.Tree, only []string) error {
	infos, err := verbs.Devices()
	if err != nil {
		return err
	}
	names := only
	if len(names) == 0 {
		for _, i := range infos {
			names = append(names, i.Name)
		}
	}
	files := uverbs.ABIFiles()
	for i, name := range names {
		n := uverbs.Node{Name: uverbs.NodeName(name), Index: i}
		dev, err := verbs.Open(name)
		if err != nil {
			return err
		}
		of, err := n.Files(dev)
		dev.Close()
		if err != nil {
			return err
		}
		maps.Copy(files, of)
		if err := t.Node(n.Path(), supervisor.Node{Device: verbsDevice(name), Major: uverbs.Major, Minor: uint32(n.Minor())}); err != nil {
			return err
		}
	}
	for _, p := range slices.Sorted(maps.Keys(files)) {
		if err := t.File(p, files[p]); err != nil {
			return err
		}
	}
	return nil
}

//go:build amd64 || arm64

package run

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/supervisor"
	"github.com/adverb-rdma/adverb/internal/ucma"
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
	var devices []string
	for _, o := range s.Program.Options {
		if name, ok := strings.CutPrefix(o, deviceOption); ok {
			devices = append(devices, name)
		}
		verbose = verbose || o == verboseOption
	}
	manager, err := show(t, devices)
	if err != nil {
		return err
	}
	defer manager.close()
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

// verbose is set by Serve.
var verbose bool

// logf tells of calls that fail, if the user has asked for that.
func logf(format string, args ...any) {
	if verbose {
		fmt.Fprintf(os.Stderr, "adverb run: "+format+"\n", args...)
	}
}

// connections is the connection manager of a run, with the devices that it uses. Most programs need none.
type connections struct {
	names []string // of the devices

	mu      sync.Mutex
	manager *ucma.Manager // nil before its first use
	devices []*verbs.Device
}

// get returns the manager.
func (c *connections) get() (*ucma.Manager, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.manager != nil {
		return c.manager, nil
	}
	for _, name := range c.names[len(c.devices):] {
		dev, err := verbs.Open(name)
		if err != nil {
			return nil, err
		}
		c.devices = append(c.devices, dev)
	}
	c.manager = ucma.New(ucma.Config{Devices: c.devices})
	return c.manager, nil
}

func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.manager != nil {
		if err := c.manager.Close(); err != nil {
			logf("close the connection manager: %v", err)
		}
	}
	for _, d := range c.devices {
		if err := d.Close(); err != nil {
			logf("close %s: %v", d.Name(), err)
		}
	}
}

// show makes the files and nodes of the devices, all or only some, and of the connection manager.
func show(t *supervisor.Tree, only []string) (*connections, error) {
	names := only
	if len(names) == 0 {
		infos, err := verbs.Devices()
		if err != nil {
			return nil, err
		}
		for _, i := range infos {
			if i.Transport == verbs.TransportIB { // rxe's provider speaks RoCE
				names = append(names, i.Name)
			}
		}
	}
	c := &connections{names: names}
	files := uverbs.ABIFiles()
	maps.Copy(files, ucma.Sysfs(miscMajor, cmMinor))
	for i, name := range names {
		n := uverbs.Node{Name: uverbs.NodeName(name), Index: i}
		dev, err := verbs.Open(name)
		if err != nil {
			return nil, err
		}
		of, err := n.Files(dev)
		dev.Close()
		if err != nil {
			return nil, err
		}
		maps.Copy(files, of)
		if err := t.Node(n.Path(), supervisor.Node{Device: verbsDevice(name), Major: uverbs.Major, Minor: uint32(n.Minor())}); err != nil {
			return nil, err
		}
	}
	if err := t.Node(cmPath, supervisor.Node{Device: cmDevice{c.get}, Major: miscMajor, Minor: cmMinor}); err != nil {
		return nil, err
	}
	for _, p := range slices.Sorted(maps.Keys(files)) {
		if err := t.File(p, files[p]); err != nil {
			return nil, err
		}
	}
	return c, nil
}

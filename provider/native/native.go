//go:build linux && (amd64 || arm64)

package native

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/adverb-rdma/adverb/internal/ibv"
	"github.com/adverb-rdma/adverb/verbs"
)

const (
	classDir = "/sys/class/infiniband_verbs" // where the kernel lists its devices
	nodeDir  = "/dev/infiniband"             // where a process opens them
)

func init() { verbs.Register("native", newProvider(ibv.Library, classDir)) }

// provider finds the kernel's devices. Tests have a library of their own, and directories.
type provider struct {
	kernel func() []kernelDevice
	nodes  string // nodeDir
	load   func() (*ibv.Lib, error)
}

// kernelDevice is a device as the kernel lists it.
type kernelDevice struct {
	name string // such as mlx5_0
	node string // its file in nodeDir, such as uverbs0
}

func newProvider(library, class string) *provider {
	return &provider{
		kernel: func() []kernelDevice { return listed(class) },
		nodes:  nodeDir,
		load:   sync.OnceValues(func() (*ibv.Lib, error) { return ibv.Load(library) }),
	}
}

// listed returns the devices in a directory of the kernel's.
func listed(class string) (devices []kernelDevice) {
	files, _ := filepath.Glob(filepath.Join(class, "uverbs*", "ibdev"))
	for _, file := range files {
		if name, err := os.ReadFile(file); err == nil {
			devices = append(devices, kernelDevice{strings.TrimSpace(string(name)), filepath.Base(filepath.Dir(file))})
		}
	}
	return devices
}

// names are the names of devices, for people.
func names(devices []kernelDevice) string {
	var all []string
	for _, d := range devices {
		all = append(all, d.name)
	}
	return strings.Join(all, ", ")
}

// library loads libibverbs. The error for a program that meets a card names the packages.
func (p *provider) library(devices []kernelDevice) (*ibv.Lib, error) {
	l, err := p.load()
	if errors.Is(err, ibv.ErrNoLibrary) {
		err = fmt.Errorf("the kernel has RDMA devices (%s), and %w: install libibverbs1 and ibverbs-providers (Debian, Ubuntu), libibverbs (Fedora, RHEL) or libibverbs1 and rdma-core (SUSE)",
			names(devices), err)
	}
	return l, err
}

// Devices implements verbs.Provider.
func (p *provider) Devices() (infos []verbs.DeviceInfo, err error) {
	kernel := p.kernel()
	if len(kernel) == 0 {
		return nil, nil
	}
	l, err := p.library(kernel)
	if err != nil {
		return nil, err
	}
	err = l.Devices(func(d ibv.Ref[ibv.Device]) bool {
		info := describe(l, d)
		infos = append(infos, info)
		kernel = slices.DeleteFunc(kernel, func(k kernelDevice) bool { return k.name == info.Name })
		return true
	})
	if err != nil {
		return infos, fault(err)
	}
	return infos, p.unlisted(kernel)
}

// unlisted is the error for devices that the kernel has and libibverbs does not list. It leaves out those whose file is not
// there, and those that no driver of its knows.
func (p *provider) unlisted(devices []kernelDevice) error {
	var why []string
	known := slices.DeleteFunc(slices.Clone(devices), func(d kernelDevice) bool {
		path := filepath.Join(p.nodes, d.node)
		if !absent(path) {
			return false
		}
		why = append(why, fmt.Sprintf("libibverbs does not see %s: %s", d.name, noNode(path)))
		return true
	})
	if len(known) > 0 {
		why = append(why, fmt.Sprintf("libibverbs has no driver for %s: install ibverbs-providers (Debian, Ubuntu) or rdma-core", names(known)))
	}
	if len(why) == 0 {
		return nil
	}
	return errors.New(strings.Join(why, "; "))
}

// describe returns the entry of a device in the list.
func describe(l *ibv.Lib, d ibv.Ref[ibv.Device]) verbs.DeviceInfo {
	c := d.P()
	name := text(c.Name[:])
	info := verbs.DeviceInfo{
		Name: name, NodeType: nodeTypes[c.NodeType], Transport: verbs.Transport(c.TransportType),
		Netdev: netdevOf(text(c.IbdevPath[:])), KernelName: name, KernelDevice: text(c.DevName[:]),
	}
	if guid, err := l.GUID(d); err == nil {
		info.NodeGUID = guid
	}
	return info
}

// nodeTypes are the names of enum ibv_node_type that verbs.DeviceInfo has.
var nodeTypes = map[int32]string{1: "CA", 2: "SWITCH", 3: "ROUTER", 4: "RNIC"}

// netdevOf returns the network interface of a device's first port, or "".
func netdevOf(ibdev string) string {
	if name, err := os.ReadFile(filepath.Join(ibdev, "ports", "1", "gid_attrs", "ndevs", "0")); err == nil {
		return strings.TrimSpace(string(name))
	}
	if found, err := os.ReadDir(filepath.Join(ibdev, "device", "net")); err == nil && len(found) > 0 {
		return found[0].Name()
	}
	return withAddress(ibdev)
}

// withAddress returns the network interface whose hardware address begins the device's first GID, as those of iWARP do. Linux
// 6.1 does not name the interface of such a device otherwise.
func withAddress(ibdev string) string {
	gid, err := os.ReadFile(filepath.Join(ibdev, "ports", "1", "gids", "0"))
	if err != nil {
		return ""
	}
	all, _ := net.Interfaces()
	for _, ifi := range all {
		digits := strings.ReplaceAll(ifi.HardwareAddr.String(), ":", "")
		if len(ifi.HardwareAddr) == 6 && strings.HasPrefix(strings.ReplaceAll(string(gid), ":", ""), digits+"0000") {
			return ifi.Name
		}
	}
	return ""
}

// text returns the string in an array of C's.
func text(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

// Open implements verbs.Provider.
func (p *provider) Open(name string) (verbs.ProviderDevice, error) {
	kernel := p.kernel()
	i := slices.IndexFunc(kernel, func(k kernelDevice) bool { return k.name == name })
	if i < 0 {
		return nil, verbs.ErrNotFound
	}
	l, err := p.library(kernel)
	if err != nil {
		return nil, err
	}
	var d *device
	seen := false
	var oerr error
	err = l.Devices(func(r ibv.Ref[ibv.Device]) bool {
		if seen = text(r.P().Name[:]) == name; seen {
			d, oerr = open(l, r, p.nodes)
		}
		return !seen
	})
	switch {
	case err != nil:
		return nil, fault(err)
	case !seen:
		return nil, p.unlisted(kernel[i : i+1])
	case oerr != nil:
		return nil, oerr
	}
	return d, nil
}

package soft

import (
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/verbs"
)

// typeRoCEv2 is the kernel's name for an entry of a GID table that is RoCEv2's. Entries of RoCEv1 and
// InfiniBand do not use UDP.
const typeRoCEv2 = "RoCE v2"

// rivals returns the names of the kernel's RoCE devices that use UDP port 4791 on a network interface.
// Such a device has a RoCEv2 GID that belongs to the interface and is one of addrs. The addresses
// tell interfaces of one name in different network namespaces apart, since the kernel may list the
// devices of all. sys is the directory in which the kernel lists its RDMA devices, or nil.
func rivals(sys fs.FS, netdev string, addrs []netip.Addr) []string {
	if sys == nil {
		return nil
	}
	var names []string
	devices, _ := fs.ReadDir(sys, ".") // none where the kernel has no RDMA
	for _, d := range devices {
		// Every used entry of a port's GID table has a file that names its interface.
		files, _ := fs.Glob(sys, path.Join(d.Name(), "ports/*/gid_attrs/ndevs/*"))
		if slices.ContainsFunc(files, func(ndev string) bool { return isRival(sys, ndev, netdev, addrs) }) {
			names = append(names, d.Name())
		}
	}
	return names
}

// isRival looks at one entry of a GID table, by its file in ndevs.
func isRival(sys fs.FS, ndev, netdev string, addrs []netip.Addr) bool {
	attrs, index := path.Dir(path.Dir(ndev)), path.Base(ndev)
	if read(sys, ndev) != netdev || read(sys, path.Join(attrs, "types", index)) != typeRoCEv2 {
		return false
	}
	a, err := netip.ParseAddr(read(sys, path.Join(path.Dir(attrs), "gids", index)))
	return err == nil && slices.Contains(addrs, a.Unmap())
}

// read returns the text of a file. It is empty if the file cannot be read, as the kernel has it with
// the entries of a GID table that are free.
func read(sys fs.FS, name string) string {
	b, _ := fs.ReadFile(sys, name)
	return strings.TrimSpace(string(b))
}

// addRivals puts the rivals on a network interface into a device's description.
func addRivals(info *verbs.DeviceInfo, n link.Netdev) {
	if s, err := n.State(); err == nil {
		info.SharesUDPPort = rivals(kernelDevices(), n.Name(), s.Addrs)
	}
}

// device is an open software device that knows its rivals.
type device struct {
	*hca.Device
	netdev link.Netdev
	hide   func() // ends that the program answers those who watch it for this device
}

// Close implements verbs.ProviderDevice.
func (d device) Close() error {
	d.hide()
	return d.Device.Close()
}

// Info implements verbs.ProviderDevice.
func (d device) Info() verbs.DeviceInfo {
	info := d.Device.Info()
	addRivals(&info, d.netdev)
	return info
}

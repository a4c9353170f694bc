//go:build linux

package uverbs

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/verbs"
)

// Node is how a device is shown to programs.
type Node struct {
	Name  string // such as rxe_eth0: rdma-core knows rxe's devices by the beginning of their names
	Index int    // n of uverbsn
}

// NodeName returns the name under which a device of this module is shown: rxe_eth0 for soft_eth0.
func NodeName(device string) string {
	if _, netdev, ok := strings.Cut(device, "_"); ok {
		return "rxe_" + netdev
	}
	return "rxe_" + device
}

// Of the numbers of character devices, those that Linux gives to uverbs.
const (
	Major     = 231
	baseMinor = 192
)

// Minor is the minor number of the node's character device.
func (n Node) Minor() int { return baseMinor + n.Index }

// Path is that of the node's character device.
func (n Node) Path() string { return fmt.Sprintf("/dev/infiniband/uverbs%d", n.Index) }

// shownGIDs is how many entries the GID table that programs see has at least. Linux's has 1024, of which programs read
// each: the device's own addresses are few.
const shownGIDs = 16

// gidEntries returns how many entries the GID table that programs see has.
func gidEntries(gids []verbs.GIDEntry) int {
	n := shownGIDs
	for _, g := range gids {
		n = max(n, g.Index+1)
	}
	return n
}

// ABIFiles are the files of sysfs that all nodes share, by path.
func ABIFiles() map[string]string {
	return map[string]string{"/sys/class/infiniband_verbs/abi_version": fmt.Sprintln(uapi.ABIVersion)}
}

// Files returns the files of sysfs that tell of a device, by path. They are those of rdma_rxe.
func (n Node) Files(dev *verbs.Device) (map[string]string, error) {
	attr, err := dev.Query()
	if err != nil {
		return nil, err
	}
	netdev := dev.Info().Netdev
	uverbs := fmt.Sprintf("uverbs%d", n.Index)
	number := fmt.Sprintf("%d:%d\n", Major, n.Minor())
	files := map[string]string{}
	class := "/sys/class/infiniband_verbs/" + uverbs + "/"
	files[class+"dev"] = number
	files[class+"ibdev"] = n.Name + "\n"
	files[class+"abi_version"] = fmt.Sprintln(uapi.RxeABIVersion)
	ib := "/sys/class/infiniband/" + n.Name + "/"
	files[ib+"node_type"] = "1: CA\n"
	files[ib+"node_guid"] = words(attr.NodeGUID[:])
	files[ib+"sys_image_guid"] = words(attr.SysImageGUID[:])
	files[ib+"node_desc"] = n.Name + "\n"
	files[ib+"fw_ver"] = "\n"
	files[ib+"device/infiniband_verbs/"+uverbs+"/dev"] = number
	if netdev != "" {
		files[ib+"parent"] = netdev + "\n"
		files[ib+"device/net/"+netdev+"/dev_port"] = "0\n"
	}
	for port := 1; port <= attr.PhysPortCnt; port++ {
		if err := portFiles(files, fmt.Sprintf("%sports/%d/", ib, port), dev, port); err != nil {
			return nil, err
		}
	}
	return files, nil
}

func portFiles(files map[string]string, dir string, dev *verbs.Device, port int) error {
	p, err := dev.QueryPort(port)
	if err != nil {
		return err
	}
	gids, err := dev.GIDs(port)
	if err != nil {
		return err
	}
	files[dir+"link_layer"] = p.LinkLayer.String() + "\n"
	files[dir+"state"] = fmt.Sprintf("%d: %s\n", p.State, strings.TrimPrefix(p.State.String(), "PORT_"))
	files[dir+"phys_state"] = fmt.Sprintf("%d: %s\n", p.PhysState, physStates[p.PhysState])
	files[dir+"rate"] = rate(&p)
	files[dir+"lid"], files[dir+"sm_lid"], files[dir+"lid_mask_count"], files[dir+"sm_sl"] = "0x0\n", "0x0\n", "0\n", "0\n"
	files[dir+"cap_mask"] = fmt.Sprintf("0x%08x\n", p.PortCapFlags)
	for i := range p.PKeyTableLen {
		k, err := dev.PKey(port, i)
		if err != nil {
			return err
		}
		files[fmt.Sprintf("%spkeys/%d", dir, i)] = fmt.Sprintf("0x%04x\n", uint16(k))
	}
	for i := range gidEntries(gids) {
		files[fmt.Sprintf("%sgids/%d", dir, i)] = words(make([]byte, 16))
		files[fmt.Sprintf("%sgid_attrs/types/%d", dir, i)] = "RoCE v2\n" // also of entries that are free, whose type Linux refuses to tell
	}
	for _, g := range gids {
		files[fmt.Sprintf("%sgids/%d", dir, g.Index)] = words(g.GID[:])
		if g.Type == verbs.GIDTypeRoCEv1 {
			files[fmt.Sprintf("%sgid_attrs/types/%d", dir, g.Index)] = "IB/RoCE v1\n"
		}
		if g.Netdev != "" {
			files[fmt.Sprintf("%sgid_attrs/ndevs/%d", dir, g.Index)] = g.Netdev + "\n"
		}
	}
	return nil
}

var physStates = map[verbs.PhysState]string{1: "Sleep", 2: "Polling", 3: "Disabled", 4: "PortConfigurationTraining", 5: "LinkUp", 6: "LinkErrorRecovery", 7: "Phy Test"}

// words returns a GUID or a GID as sysfs does: words of 16 bits.
func words(b []byte) string {
	var s []string
	for ; len(b) >= 2; b = b[2:] {
		s = append(s, fmt.Sprintf("%04x", binary.BigEndian.Uint16(b)))
	}
	return strings.Join(s, ":") + "\n"
}

// rate returns the port's rate as sysfs does.
func rate(p *verbs.PortAttr) string {
	lanes := map[uint8]int{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}[p.ActiveWidth]
	speed := map[uint32]struct {
		tenths int // Gbit/s a lane
		name   string
	}{1: {25, "SDR"}, 2: {50, "DDR"}, 4: {100, "QDR"}, 8: {100, "FDR10"}, 16: {140, "FDR"}, 32: {250, "EDR"}, 64: {500, "HDR"}, 128: {1000, "NDR"}}[p.ActiveSpeed]
	if lanes == 0 || speed.tenths == 0 {
		lanes, speed.tenths, speed.name = 1, 25, "SDR"
	}
	total := lanes * speed.tenths
	s := fmt.Sprint(total / 10)
	if total%10 != 0 {
		s += fmt.Sprintf(".%d", total%10)
	}
	return fmt.Sprintf("%s Gb/sec (%dX %s)\n", s, lanes, speed.name)
}

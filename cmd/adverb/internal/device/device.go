// Package device has the commands' common work with an RDMA device: open it, choose one of its GIDs, and wait for
// completions.
package device

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/verbs"
)

// ErrNone is the cause of a failure for want of any device.
var ErrNone = errors.New("list devices: no provider has one; a software device needs a network interface that is up and has an address (\"ip link set lo up\" makes one)")

// Names are the names of the devices that there are, for completion.
var Names = cli.Values{List: func() (list []cli.Value) {
	devices, _ := verbs.Devices() // completion shows the devices that there are
	for _, d := range devices {
		list = append(list, cli.Value{Text: d.Name, Help: "device of " + d.Netdev})
	}
	return list
}}

// Netdevs are the names of the network interfaces, for completion.
var Netdevs = cli.Values{List: func() (list []cli.Value) {
	interfaces, _ := net.Interfaces()
	for _, i := range interfaces {
		list = append(list, cli.Value{Text: i.Name})
	}
	return list
}}

// MTUs are the path MTUs in bytes, for completion.
var MTUs = cli.OneOf("256", "512", "1024", "2048", "4096")

// List returns all devices, and says which of the kernel's this build does not serve. It fails, and reports the failure in the words of the C programs, only
// if there is no list at all. That one provider fails hides no device of another.
func List(inv *cli.Invocation) (list []verbs.DeviceInfo, ok bool) {
	list, err := verbs.Devices()
	defer ExplainUnserved(inv)
	if err != nil && len(list) == 0 {
		inv.Fail(err, "Failed to get IB devices list: %v\n", clib.SystemError(err))
		return nil, false
	}
	inv.Explain(err)
	return list, true
}

// First returns the name of the first device. It fails if there is none.
func First() (name string, err error) {
	list, err := verbs.Devices()
	switch {
	case len(list) > 0:
		return list[0].Name, nil
	case err == nil:
		err = ErrNone
	}
	return "", err
}

// Open opens the device called name or, for "", the first one. It reports failures in the words of
// the pingpong programs, and then returns nil.
func Open(inv *cli.Invocation, name string) *verbs.Device {
	if name == "" {
		var err error
		name, err = First()
		switch {
		case errors.Is(err, ErrNone):
			inv.Fail(err, "No IB devices found\n")
			ExplainUnserved(inv)
			return nil
		case err != nil:
			inv.Fail(err, "Failed to get IB devices list: %v\n", clib.SystemError(err))
			return nil
		}
	}
	dev, err := verbs.Open(name)
	switch {
	case errors.Is(err, verbs.ErrNotFound):
		inv.Fail(err, "IB device %s not found\n", name)
		ExplainUnserved(inv)
	case err != nil:
		inv.Fail(err, "Couldn't get context for %s\n", name)
	default:
		return dev
	}
	return nil
}

// FirstGID chooses an entry of the GID table for a user who gave no -g. It is the first IPv4
// address of RoCE v2, since every peer has IPv4. Without one it is the first RoCE v2 address.
func FirstGID(entries []verbs.GIDEntry) (index int, ok bool) {
	index = -1
	for _, e := range entries {
		if e.Type != verbs.GIDTypeRoCEv2 || e.GID.IsZero() {
			continue
		}
		if e.GID.Addr().Is4() {
			return e.Index, true
		}
		if index < 0 {
			index = e.Index
		}
	}
	return index, index >= 0
}

// SysfsGID prints a GID as the Linux kernel does: eight groups, none left out.
func SysfsGID(g verbs.GID) string {
	var s []string
	for i := 0; i < len(g); i += 2 {
		s = append(s, fmt.Sprintf("%02x%02x", g[i], g[i+1]))
	}
	return strings.Join(s, ":")
}

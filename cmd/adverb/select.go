package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/adverb-rdma/adverb/verbs"
)

// openDevice opens the device called name or, for "", the first there is. It reports failures
// in the words of the pingpong programs; dev is then nil.
func (inv *invocation) openDevice(name string) (dev *verbs.Device) {
	if name == "" {
		list, err := verbs.Devices()
		if err != nil && len(list) == 0 {
			inv.fail(err, "Failed to get IB devices list: %v\n", errno(err))
			return nil
		}
		if len(list) == 0 {
			inv.fail(errNoDevices, "No IB devices found\n")
			return nil
		}
		name = list[0].Name
	}
	dev, err := verbs.Open(name)
	switch {
	case errors.Is(err, verbs.ErrNotFound):
		inv.fail(err, "IB device %s not found\n", name)
	case err != nil:
		inv.fail(err, "Couldn't get context for %s\n", name)
	default:
		return dev
	}
	return nil
}

var errNoDevices = errors.New("list devices: no provider has one; a software device needs a network interface that is up")

// errno is the C library's text for err, for classic lines that end in one.
func errno(err error) error {
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e
	}
	return err
}

// firstGID chooses an entry of the GID table for those who gave no -g: the first IPv4 RoCE v2
// address, since every peer has IPv4, or else the first RoCE v2 address.
func firstGID(entries []verbs.GIDEntry) (index int, ok bool) {
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

// sysfsGID prints a GID as the Linux kernel does: eight groups, none left out.
func sysfsGID(g verbs.GID) string {
	var s []string
	for i := 0; i < len(g); i += 2 {
		s = append(s, fmt.Sprintf("%02x%02x", g[i], g[i+1]))
	}
	return strings.Join(s, ":")
}

// printJSON prints v with the indentation that all of the tool's JSON has.
func (inv *invocation) printJSON(v any) int {
	e := json.NewEncoder(inv.stdout)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return inv.fail(err, "")
	}
	return exitOK
}

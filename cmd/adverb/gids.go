package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/adverb-rdma/adverb/verbs"
)

var gidsCmd = &command{
	name:    "gids",
	classic: "show_gids",
	short:   "List the GID tables of RDMA devices",
	options: []option{jsonOption},
	usage:   func(w io.Writer, _ *command, prog string) { fmt.Fprintf(w, "Usage: %s [<dev>]\n", prog) },
	run:     runGIDs,
}

// gid is an entry of a device's GID table.
type gid struct {
	device string
	verbs.GIDEntry
}

type gidJSON struct {
	Device string `json:"device"`
	Port   int    `json:"port"`
	Index  int    `json:"index"`
	GID    string `json:"gid"`
	Type   string `json:"type"`
	Netdev string `json:"netdev"`
}

func newGIDJSON(device string, e verbs.GIDEntry) gidJSON {
	return gidJSON{device, e.Port, e.Index, e.GID.String(), e.Type.String(), e.Netdev}
}

func runGIDs(inv *invocation) int {
	asJSON := false
	operands, code, ok := inv.parse(exitError, func(string, string) bool { asJSON = true; return true })
	if !ok {
		return code
	}
	names := operands[:min(len(operands), 1)]
	if len(names) == 0 {
		list, err := verbs.Devices()
		inv.explain(err)
		for _, d := range list {
			names = append(names, d.Name)
		}
	}
	var all []gid
	for _, name := range names {
		es, err := deviceGIDs(name)
		if err != nil {
			inv.explain(err)
			code = exitError
		}
		for _, e := range es {
			all = append(all, gid{name, e})
		}
	}
	if asJSON {
		out := []gidJSON{}
		for _, e := range all {
			out = append(out, newGIDJSON(e.device, e.GIDEntry))
		}
		return max(code, inv.printJSON(out))
	}
	printGIDs(inv.stdout, all)
	return code
}

// deviceGIDs returns the entries of all ports, in the order of the classic program.
func deviceGIDs(name string) (all []verbs.GIDEntry, err error) {
	dev, err := verbs.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	attr, err := dev.Query()
	if err != nil {
		return nil, err
	}
	for port := 1; port <= attr.PhysPortCnt; port++ {
		es, err := dev.GIDs(port)
		if err != nil {
			return all, err
		}
		// The classic program lists a directory, whose 10 comes before its 2.
		slices.SortFunc(es, func(a, b verbs.GIDEntry) int {
			return strings.Compare(strconv.Itoa(a.Index), strconv.Itoa(b.Index))
		})
		all = append(all, es...)
	}
	return all, nil
}

// linkLocalPrefix is what a table entry without an address of its own holds.
var linkLocalPrefix = verbs.GID{0: 0xfe, 1: 0x80}

func printGIDs(w io.Writer, all []gid) {
	fmt.Fprintf(w, "DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV\n")
	fmt.Fprintf(w, "---\t----\t-----\t---\t\t\t\t\t------------  \t---\t---\n")
	n := 0
	for _, e := range all {
		if e.GID.IsZero() || e.GID == linkLocalPrefix {
			continue
		}
		n++
		ver := "v1"
		if e.Type == verbs.GIDTypeRoCEv2 {
			ver = "v2"
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t", e.device, e.Port, e.Index, sysfsGID(e.GID))
		if e.GID[0] == 0 && e.GID[1] == 0 {
			fmt.Fprintf(w, "%v  \t%s\t%s\n", netip.AddrFrom4([4]byte(e.GID[12:])), ver, e.Netdev)
		} else {
			fmt.Fprintf(w, "\t\t%s\t%s\n", ver, e.Netdev)
		}
	}
	fmt.Fprintf(w, "n_gids_found=%d\n", n)
}

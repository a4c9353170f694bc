package devinfo

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
	"github.com/adverb-rdma/adverb/verbs"
)

// GIDs is the command gids.
var GIDs = &cli.Command{
	Name:     "gids",
	Classic:  []string{"show_gids"},
	Short:    "List the GID tables of RDMA devices",
	Flags:    []cli.Flag{cli.JSONFlag},
	Operands: []cli.Values{device.Names},
	Forms:    []cli.Form{{Args: "[<dev>]"}},
	Usage:    cli.UsageLine,
	Run:      runGIDs,
}

// gid is an entry of a device's GID table, with the device's name.
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

func runGIDs(inv *cli.Invocation) int {
	asJSON := false
	operands, code, ok := inv.Parse(cli.ExitError, func(string, string) bool { asJSON = true; return true })
	if !ok {
		return code
	}
	names := operands[:min(len(operands), 1)]
	if len(names) == 0 {
		list, err := verbs.Devices()
		inv.Explain(err)
		for _, d := range list {
			names = append(names, d.Name)
		}
	}
	var all []gid
	for _, name := range names {
		es, err := deviceGIDs(name)
		if err != nil {
			inv.Explain(err)
			if errors.Is(err, verbs.ErrNotFound) {
				device.ExplainUnserved(inv)
			}
			code = cli.ExitError
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
		return max(code, inv.PrintJSON(out))
	}
	printGIDs(inv.Stdout, all)
	return code
}

// deviceGIDs returns the entries of all ports, in the order of the C program.
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
		// The C program lists a directory, where the name 10 comes before the name 2.
		slices.SortFunc(es, func(a, b verbs.GIDEntry) int {
			return strings.Compare(strconv.Itoa(a.Index), strconv.Itoa(b.Index))
		})
		all = append(all, es...)
	}
	return all, nil
}

// linkLocalPrefix is the GID of a table entry that has no address of its own.
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
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t", e.device, e.Port, e.Index, device.SysfsGID(e.GID))
		if a := netip.AddrFrom16(e.GID); a.Is4In6() { // the C program says so of ::1 too, which it never meets
			fmt.Fprintf(w, "%v  \t%s\t%s\n", a.Unmap(), ver, e.Netdev)
		} else {
			fmt.Fprintf(w, "\t\t%s\t%s\n", ver, e.Netdev)
		}
	}
	fmt.Fprintf(w, "n_gids_found=%d\n", n)
}

package devinfo

import (
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
	"github.com/adverb-rdma/adverb/verbs"
)

// hostFacts are the facts of a host that a maintainer needs, beside its devices. They name no address and no user.
type hostFacts struct {
	Adverb   string   `json:"adverb"`
	Go       string   `json:"go"`
	Platform string   `json:"platform"`
	Cards    bool     `json:"cards"` // the program has a provider for cards
	Kernel   string   `json:"kernel,omitempty"`
	System   string   `json:"system,omitempty"`
	Library  string   `json:"libibverbs,omitempty"`
	Modules  []string `json:"modules,omitempty"` // of the kernel, that have to do with RDMA
	Files    []string `json:"files,omitempty"`   // in /dev/infiniband
	Memlock  string   `json:"memlock,omitempty"` // the soft limit, in bytes
}

// cardFacts are the kernel's facts of a device.
type cardFacts struct {
	Driver string `json:"driver,omitempty"`
	Board  string `json:"board_id,omitempty"`
	Type   string `json:"hca_type,omitempty"`
	PCI    string `json:"pci,omitempty"` // vendor and device
}

func factsOfHost() hostFacts {
	f := hostFacts{Adverb: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Cards: device.WithCards(),
		Kernel: line("/proc/sys/kernel/osrelease"), Library: libraryFile()}
	if info, ok := debug.ReadBuildInfo(); ok {
		f.Adverb = info.Main.Version
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				f.Adverb += " " + s.Value
			}
		}
	}
	for l := range lines("/etc/os-release") {
		if name, ok := strings.CutPrefix(l, "PRETTY_NAME="); ok {
			f.System = strings.Trim(name, `"`)
		}
	}
	rdmaModules := regexp.MustCompile(`^(ib_|rdma|iw_|siw|mlx[45]|bnxt_re|irdma|cxgb4|hfi1|qedr|ocrdma|efa|erdma|mana_ib|hns_roce|vmw_pvrdma|usnic)`)
	for l := range lines("/proc/modules") {
		if name, _, _ := strings.Cut(l, " "); rdmaModules.MatchString(name) {
			f.Modules = append(f.Modules, name)
		}
	}
	slices.Sort(f.Modules)
	for l := range lines("/proc/self/limits") {
		if rest, ok := strings.CutPrefix(l, "Max locked memory"); ok {
			f.Memlock = strings.Fields(rest)[0]
		}
	}
	entries, _ := os.ReadDir("/dev/infiniband")
	for _, e := range entries {
		f.Files = append(f.Files, e.Name())
	}
	return f
}

// libraryFile is the name of libibverbs' file, which has its version.
func libraryFile() string {
	for _, pattern := range []string{"/usr/lib*/*/libibverbs.so.1", "/usr/lib*/libibverbs.so.1", "/lib*/*/libibverbs.so.1"} {
		found, _ := filepath.Glob(pattern)
		for _, file := range found {
			if to, err := filepath.EvalSymlinks(file); err == nil {
				return filepath.Base(to)
			}
		}
	}
	return ""
}

// boardOf returns what identifies a card's board, or "".
func boardOf(kernelName string) string {
	if kernelName == "" {
		return ""
	}
	return line(filepath.Join(device.ClassDir, kernelName, "board_id"))
}

func factsOfCard(kernelName string) (c cardFacts) {
	if kernelName == "" {
		return c
	}
	dir := filepath.Join(device.ClassDir, kernelName)
	if to, err := filepath.EvalSymlinks(filepath.Join(dir, "device", "driver")); err == nil {
		c.Driver = filepath.Base(to)
	}
	c.Board, c.Type = boardOf(kernelName), line(filepath.Join(dir, "hca_type"))
	if v, d := line(filepath.Join(dir, "device", "vendor")), line(filepath.Join(dir, "device", "device")); v != "" {
		c.PCI = v + ":" + d
	}
	return c
}

// line returns the first line of a file, or "".
func line(file string) string {
	for l := range lines(file) {
		return l
	}
	return ""
}

// lines are the lines of a file that may not be there.
func lines(file string) iter.Seq[string] {
	b, _ := os.ReadFile(file)
	return func(yield func(string) bool) {
		for l := range strings.Lines(string(b)) {
			if !yield(strings.TrimRight(l, "\n")) {
				return
			}
		}
	}
}

func (f *hostFacts) print(w io.Writer) {
	cards := "software devices alone"
	if f.Cards {
		cards = "cards, by libibverbs"
	}
	for _, p := range [][2]string{{"adverb", f.Adverb + ", " + f.Go + ", " + f.Platform}, {"has", cards}, {"system", f.System}, {"kernel", f.Kernel}, {"libibverbs", f.Library},
		{"modules", strings.Join(f.Modules, " ")}, {"/dev/infiniband", strings.Join(f.Files, " ")}, {"locked memory", f.Memlock}} {
		printFact(w, p[0], p[1])
	}
}

func (c *cardFacts) print(w io.Writer) {
	for _, p := range [][2]string{{"driver", c.Driver}, {"hca_type", c.Type}, {"board_id", c.Board}, {"PCI", c.PCI}} {
		printFact(w, p[0], p[1])
	}
}

func printFact(w io.Writer, name, value string) {
	if value != "" {
		fmt.Fprintf(w, "%-16s %s\n", name, value)
	}
}

// redact replaces GUIDs and GIDs, which tell devices and hosts apart. Numbers stand for them, by which a reader sees which
// are the same. The kind of a GID stays: an IPv4 address, one of a link, or another. redact returns pairs of an address and
// its replacement, for texts.
func (r *report) redact() (pairs []string) {
	seen := map[any]byte{}
	number := func(k any) byte {
		if seen[k] == 0 {
			seen[k] = byte(len(seen) + 1)
		}
		return seen[k]
	}
	guid := func(g verbs.GUID) verbs.GUID {
		if g == (verbs.GUID{}) {
			return g
		}
		return verbs.GUID{7: number(g)}
	}
	r.info.NodeGUID, r.attr.NodeGUID, r.attr.SysImageGUID = guid(r.info.NodeGUID), guid(r.attr.NodeGUID), guid(r.attr.SysImageGUID)
	if before, _, ok := strings.Cut(r.info.Name, "@"); ok {
		r.info.Name = before
	}
	for i := range r.ports {
		for j := range r.ports[i].gids {
			g := &r.ports[i].gids[j].GID
			was, n := *g, number(*g)
			switch addr := g.Addr(); {
			case g.IsZero():
			case addr.Is4():
				*g = verbs.GID{10: 0xff, 11: 0xff, 15: n}
			case addr.IsLinkLocalUnicast():
				*g = verbs.GID{0: 0xfe, 1: 0x80, 15: n}
			default:
				*g = verbs.GID{0: 0x20, 1: 0x01, 2: 0x0d, 3: 0xb8, 15: n} // of documentation
			}
			if was != *g {
				pairs = append(pairs, was.String(), g.String(), was.Addr().String(), g.Addr().String())
			}
		}
	}
	return pairs
}

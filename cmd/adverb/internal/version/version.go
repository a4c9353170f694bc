// Package version has the command version, which prints the program's version and the sources that it was built from.
package version

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
	"github.com/adverb-rdma/adverb/verbs"
)

// Command is the command version.
var Command = &cli.Command{
	Name:  "version",
	Short: "Print the version of this program, and the sources that it was built from",
	Flags: []cli.Flag{cli.JSONFlag},
	Forms: []cli.Form{{Args: "[--json]"}},
	Usage: cli.UsageLine,
	More: "A build of a module at a version, as by \"go install …@latest\", has the version and no revision. One of a\n" +
		"working tree has the revision that was checked out. \"go version -m\" tells both, with all modules.\n" +
		"\"devices\" are the providers that it was built with: soft, and native with -tags adverb_native.\n",
	Run: run,
}

// facts are the data that a build has on itself.
type facts struct {
	Module   string `json:"module"`
	Version  string `json:"version"`            // "unknown" if the build was told none
	Revision string `json:"revision,omitempty"` // of the version control system
	Time     string `json:"time,omitempty"`     // of the revision
	Modified bool   `json:"modified"`           // the tree had other changes
	Go       string `json:"go"`
	Platform string `json:"platform"` // GOOS/GOARCH

	Providers []string `json:"providers"`          // of devices: native has cards
	Unserved  []string `json:"unserved,omitempty"` // the kernel's devices, where no provider has cards
}

// read takes the facts of a build; info is nil if there are none.
func read(info *debug.BuildInfo) facts {
	f := facts{Version: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Providers: verbs.Providers(), Unserved: device.Unserved()}
	if info == nil {
		return f
	}
	f.Module = info.Main.Path
	if v := info.Main.Version; v != "(devel)" { // that says that it is not known
		f.Version = cmp.Or(v, f.Version)
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			f.Revision = s.Value
		case "vcs.time":
			f.Time = s.Value
		case "vcs.modified":
			f.Modified = s.Value == "true"
		}
	}
	return f
}

func (f facts) String() string {
	s := "adverb " + f.Version + "\n"
	if f.Module != "" {
		s += "module    " + f.Module + "\n"
	}
	if f.Revision != "" {
		s += "revision  " + f.Revision
		if f.Time != "" {
			s += " of " + f.Time
		}
		if f.Modified {
			s += ", with changes"
		}
		s += "\n"
	}
	s += fmt.Sprintf("go        %s\nplatform  %s\ndevices   %s\n", f.Go, f.Platform, strings.Join(f.Providers, ", "))
	if len(f.Unserved) > 0 {
		s += "          " + device.UnservedRemedy(f.Unserved) + "\n"
	}
	return s
}

func run(inv *cli.Invocation) int {
	json := false
	operands, code, ok := inv.Parse(cli.ExitUsage, func(name, _ string) bool {
		if name != "json" {
			cli.Undeclared(name)
		}
		json = true
		return true
	})
	if !ok {
		return code
	}
	if len(operands) > 0 {
		inv.Errorf("%s: %q: nothing is to be named\n", inv.Prog, operands)
		inv.PrintUsage()
		return cli.ExitUsage
	}
	info, _ := debug.ReadBuildInfo()
	f := read(info)
	if json {
		return inv.PrintJSON(f)
	}
	inv.Printf("%s", f)
	return cli.ExitOK
}

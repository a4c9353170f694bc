package version

import (
	"encoding/json"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/verbs"
)

const platform = runtime.GOOS + "/" + runtime.GOARCH

func TestRead(t *testing.T) {
	ends := "go        " + runtime.Version() + "\nplatform  " + platform + "\ndevices   " + strings.Join(verbs.Providers(), ", ") + "\n"
	for _, tt := range []struct {
		name string
		info *debug.BuildInfo
		want string
	}{
		{"nothing", nil, "adverb unknown\n"},
		{"a tree", &debug.BuildInfo{Main: debug.Module{Path: "m", Version: "(devel)"}}, "adverb unknown\nmodule    m\n"},
		{"go install", &debug.BuildInfo{Main: debug.Module{Path: "m", Version: "v1.2.3"}}, "adverb v1.2.3\nmodule    m\n"},
		{"a clone", &debug.BuildInfo{Main: debug.Module{Path: "m", Version: "v1.2.4-0.20260101000000-abc+dirty"}, Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "2026-01-01T00:00:00Z"}, {Key: "vcs.modified", Value: "true"}, {Key: "GOOS", Value: "linux"},
		}}, "adverb v1.2.4-0.20260101000000-abc+dirty\nmodule    m\nrevision  abc of 2026-01-01T00:00:00Z, with changes\n"},
	} {
		if got := read(tt.info).String(); got != tt.want+ends {
			t.Errorf("%s: got\n%swant\n%s%s", tt.name, got, tt.want, ends)
		}
	}
}

// TestUnserved: a build without cards says so where the kernel has one.
func TestUnserved(t *testing.T) {
	f := facts{Providers: []string{"soft"}, Unserved: []string{"mlx5_0"}}
	if got, want := f.String(), "devices   soft\n          the kernel has mlx5_0: this build has no cards; use "; !strings.Contains(got, want) {
		t.Errorf("got\n%swant %q in it", got, want)
	}
}

func TestCommand(t *testing.T) {
	tool := tooltest.New(Command)
	if r := tool.Result(t.Context(), "adverb", "version"); r.Code != 0 || !strings.HasPrefix(r.Stdout, "adverb ") || !strings.Contains(r.Stdout, platform+"\ndevices   ") {
		t.Errorf("status %d: %s%s, want status 0, and adverb and %s", r.Code, r.Stdout, r.Stderr, platform)
	}
	var f facts
	r := tool.Result(t.Context(), "adverb", "version", "--json")
	if err := json.Unmarshal([]byte(r.Stdout), &f); err != nil || f.Platform != platform || f.Go == "" || f.Version == "" {
		t.Errorf("%v: %s, want versions and %s", err, r.Stdout, platform)
	}
	if r := tool.Result(t.Context(), "adverb", "version", "x"); r.Code != 2 {
		t.Errorf("an operand: status %d, want 2", r.Code)
	}
}

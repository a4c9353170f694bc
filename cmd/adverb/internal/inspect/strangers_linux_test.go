package inspect

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/internal/user/usertest"
	"github.com/adverb-rdma/adverb/internal/watch"
)

// The tool does not say that nobody has a device open if not all have answered.
func TestNoneUnknown(t *testing.T) {
	hangUp(t)
	for _, command := range []string{"stat", "res"} {
		code, _, stderr := tool.Run(t.Context(), "adverb", command, "soft_nosuch")
		if want := "no program that has answered has device soft_nosuch open"; code != cli.ExitError || !strings.Contains(stderr, want) {
			t.Errorf("%s: status %d, stderr %q; want status %d and %q", command, code, stderr, cli.ExitError, want)
		}
	}
}

// In a user namespace that cannot tell the user from others the tool asks nobody, and says why. A program there says to its
// root that it shares nothing.
func TestUserNamespace(t *testing.T) {
	if !usertest.In(t, usertest.Namespace()) {
		return
	}
	for _, command := range []string{"stat", "res"} {
		code, _, stderr := tool.Run(t.Context(), "adverb", command)
		if want := "its user cannot be told from others: this user namespace shows all users whom it does not map as 65534"; code != cli.ExitError || !strings.Contains(stderr, want) {
			t.Errorf("%s: status %d, stderr %q; want status %d and %q", command, code, stderr, cli.ExitError, want)
		}
	}
	if p := watch.Self(watch.WantStat); !strings.Contains(p.Alone, "cannot be told from others") {
		t.Errorf("the program says that it is alone because %q, want the cause", p.Alone)
	}
}

// A program's text on its being alone is printed, and made fit for a terminal.
func TestAlone(t *testing.T) {
	name := fmt.Sprintf("@adverb/watch/%d/%d-%s", os.Geteuid(), os.Getpid(), t.Name())
	l, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	answer, err := json.Marshal(watch.Process{Alone: "its user \x1b[2J cannot be told", Devices: []watch.Device{{Name: "soft_alone"}}})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			c.Read(make([]byte, 64))
			c.Write(answer)
			c.Close()
		}
	}()
	_, out, stderr := tool.Run(t.Context(), "adverb", "res", "soft_alone")
	want := fmt.Sprintf("pid %d shares neither memory nor its addresses with other programs: its user ?[2J cannot be told", os.Getpid())
	if !strings.Contains(stderr, want) || !strings.Contains(out, "soft_alone") {
		t.Errorf("stdout %q, stderr %q, want the program and %q", out, stderr, want)
	}
}

package lab

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/lab/agent"
)

// Errors say what is missing, and what to do about it. These tests need no lab, but some of them
// need root.

func needRoot(t *testing.T) {
	t.Helper()
	if err := possible(); err != nil {
		t.Skip(err)
	}
}

// needLoopback is needRoot for tests that send to themselves. Inside the lab's network, they could
// not do so before a lab has started.
func needLoopback(t *testing.T) {
	t.Helper()
	needRoot(t)
	if inside() {
		t.Skip("runs where there is no lab: make test")
	}
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want an error with %q", err, part)
		}
	}
}

func TestPossible(t *testing.T) {
	if os.Geteuid() != 0 {
		wantError(t, possible(), "root", "sudo")
	}
	if got := lackingCapabilities(0); len(got) != len(capabilities) || got[0] != "SYS_ADMIN" {
		t.Errorf("without capabilities: got %q lacking, want all %d, SYS_ADMIN first", got, len(capabilities))
	}
	if got := lackingCapabilities(^uint64(1 << 12)); len(got) != 1 || got[0] != "NET_ADMIN" {
		t.Errorf("without capability 12: got %q lacking, want NET_ADMIN", got)
	}
}

func TestNoApt(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := prepare(t.Context(), Release)
	wantError(t, err, "apt-get", "Debian")
}

func TestAptFails(t *testing.T) {
	needRoot(t)
	bin := t.TempDir()
	const says = "#!/bin/sh\necho 'E: Unable to locate package rdmacm-utils' >&2\nexit 100\n"
	if err := os.WriteFile(filepath.Join(bin, "apt-get"), []byte(says), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH")) // which has nsenter
	_, err := resolve(t.Context(), t.TempDir(), packages)
	wantError(t, err, "exit status 100", "locate package rdmacm-utils", "apt-get update")
}

// A release by name has lists of its own, from Debian's mirrors, and lists that are new serve again.
func TestRelease(t *testing.T) {
	needRoot(t)
	if _, err := os.Stat(keyring); err != nil {
		t.Skip(err)
	}
	_, err := prepare(t.Context(), "../etc")
	wantError(t, err, `release "../etc"`, "trixie")

	bin, dir := t.TempDir(), t.TempDir()
	const notes = `#!/bin/sh
if [ "$1" = indextargets ]; then
	. ` + osRelease + `
	echo "Debian Packages main http://mirror.invalid/debian/ $VERSION_CODENAME-updates"
	exit
fi
echo "$@" >>$(dirname "$0")/calls
`
	if err := os.WriteFile(filepath.Join(bin, "apt-get"), []byte(notes), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	for range 2 {
		if err := updateRelease(t.Context(), dir, "trixie"); err != nil {
			t.Fatal(err)
		}
	}
	calls, err := os.ReadFile(filepath.Join(bin, "calls"))
	if err != nil || strings.Count(string(calls), "\n") != 1 || !strings.Contains(string(calls), "Dir::State::lists="+dir) || !strings.Contains(string(calls), " update") {
		t.Errorf("apt-get was called with %q, %v; want one update of lists in %s", calls, err, dir)
	}
	sources, err := os.ReadFile(filepath.Join(dir, "release.sources"))
	if err != nil || !strings.Contains(string(sources), "URIs: http://mirror.invalid/debian/\nSuites: trixie-updates\n") {
		t.Errorf("got sources %q, %v; want trixie's at this system's mirror", sources, err)
	}
}

func TestReleaseSources(t *testing.T) {
	const list = `Debian Packages main http://a.invalid/debian/ bookworm
Debian DEP-11 main http://a.invalid/debian/ bookworm
Debian Packages contrib http://a.invalid/debian/ bookworm
Debian Packages main http://b.invalid/debian-security/ bookworm-security
Other Packages main https://c.invalid/apt bookworm
`
	got, err := releaseSources("trixie", "NAME=x\nVERSION_CODENAME=bookworm\n", list)
	if err != nil || strings.Count(got, "URIs: ") != 2 || !strings.Contains(got, "URIs: http://a.invalid/debian/\nSuites: trixie\n") ||
		!strings.Contains(got, "URIs: http://b.invalid/debian-security/\nSuites: trixie-security\n") {
		t.Errorf("got %q, %v; want trixie and trixie-security of Debian's main", got, err)
	}
	_, err = releaseSources("trixie", "VERSION_CODENAME=noble\n", list)
	wantError(t, err, "trixie", `"noble"`, "apt-get update")
}

// An image without siw serves guests with rxe, and says why the image has no siw.
func TestNoSiw(t *testing.T) {
	img := imageAt(t.TempDir())
	if err := img.setLack(deviceSiw, errors.New("make: no space left")); err != nil {
		t.Fatal(err)
	}
	if err := img.lacks(deviceRxe); err != nil {
		t.Error(err)
	}
	err := img.lacks(deviceSiw)
	wantError(t, err, "siw", "make: no space left")
	if !errors.Is(err, errNoDevice) {
		t.Errorf("got %v, want an error that is errNoDevice", err)
	}
}

// Nothing is built for another kernel than the guests', which would not load it.
func TestSiwForOtherKernel(t *testing.T) {
	img := imageAt(t.TempDir())
	if err := os.MkdirAll(filepath.Join(img.root, "usr/src/linux-headers-6.1.0-57-amd64"), 0o755); err != nil {
		t.Fatal(err)
	}
	wantError(t, img.buildSiw(t.Context(), "6.1.0-56-amd64"), "found linux-headers-6.1.0-57-amd64", "want linux-headers-6.1.0-56-amd64")
}

func TestOtherVersions(t *testing.T) {
	archives := []string{"linux-image-amd64_6.1.1-1_amd64.deb", "linux-headers-amd64_6.1.1-1_amd64.deb", "linux-source_6.1.1-1_all.deb"}
	if got := otherVersions(archives); got != "" {
		t.Errorf("packages of one version: got %q, want nothing", got)
	}
	if got := otherVersions(archives[:1]); got != "" {
		t.Errorf("the kernel alone: got %q, want nothing", got)
	}
	archives[2] = "linux-source_6.1.2%2bx-1_all.deb"
	if got := otherVersions(archives); !strings.Contains(got, "linux-image-amd64 6.1.1-1") || !strings.Contains(got, "linux-source 6.1.2+x-1") {
		t.Errorf("packages of two versions: got %q, want the kernel's 6.1.1-1 and the source's 6.1.2+x-1", got)
	}
}

// A reader may stop reading a command that prints for ever. The failure of a command is not taken
// for the end of its output.
func TestReadTree(t *testing.T) {
	needRoot(t)
	ctx := within(t, patience)
	line := make([]byte, 2)
	if err := readTree(exec.CommandContext(ctx, "yes"), func(r io.Reader) error {
		_, err := io.ReadFull(r, line)
		return errors.Join(err, errEnough)
	}); err != nil || string(line) != "y\n" {
		t.Errorf("got %q, %v; want %q", line, err, "y\n")
	}
	all := func(r io.Reader) error { _, err := io.Copy(io.Discard, r); return err }
	wantError(t, readTree(exec.CommandContext(ctx, "sh", "-c", "echo broken >&2; exit 3"), all), "exit status 3", "broken")
	wantError(t, readTree(exec.CommandContext(ctx, "yes"), func(io.Reader) error { return errors.New("disk full") }), "disk full")
}

// Processes that a command has started end with the command: otherwise the read of its stdout would
// not end.
func TestRunTree(t *testing.T) {
	needRoot(t)
	ctx := within(t, patience)
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "sh", "-c", "sleep 1000 & echo started")
	cmd.Stdout = &out
	if err := runTree(cmd); err != nil || out.String() != "started\n" {
		t.Errorf("got %q, %v; want %q", &out, err, "started\n")
	}
	wantError(t, runTree(exec.CommandContext(ctx, "sh", "-c", "echo why >&2; exit 3")), "exit status 3", "why")
}

// If a guest dies while it receives a long request, the error comes at once, and not when TCP gives
// up.
func TestGuestGone(t *testing.T) {
	needLoopback(t)
	g := &Guest{name: "guest", addr4: netip.MustParsePrefix("127.47.0.1/8"), gone: make(chan struct{})}
	l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(g.Addr(false), agent.Port)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err == nil {
			defer conn.Close()
		}
		close(g.gone)
		<-t.Context().Done()
	}()
	// The request is longer than the buffers' contents can be.
	_, err = g.StartRequest(t.Context(), agent.Request{Argv: []string{"cat"}, Stdin: make([]byte, 16<<20)})
	wantError(t, err, "cat", errGuestGone.Error())
}

// A capture ends even if the packets do not.
func TestCaptureWithoutEnd(t *testing.T) {
	needLoopback(t)
	c, err := capture("lo")
	if err != nil {
		t.Fatal(err)
	}
	// With this timeout, even a slow sender does not seem to have stopped.
	long := unix.NsecToTimeval(patience.Nanoseconds())
	if err := unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &long); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("udp", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("first")); err != nil {
		t.Fatal(err)
	}
	go func() {
		for t.Context().Err() == nil {
			conn.Write([]byte("again")) // sometimes refused, since nobody listens
		}
	}()
	c.patience = 100 * time.Millisecond
	frames, err := c.Stop()
	wantError(t, err, "still come")
	if len(frames) == 0 {
		t.Error("the capture has no frames, want at least the one that was sent before its end")
	}
}

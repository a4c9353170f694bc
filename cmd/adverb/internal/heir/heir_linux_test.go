package heir

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/internal/user/usertest"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

var tool = tooltest.New(Command)

// Devices that no other program of the host has open under these names, and their addresses.
const (
	clientAddr, clientDevice = "127.31.8.1", "soft_lo@127.31.8.1"
	serverAddr, serverDevice = "127.31.8.2", "soft_lo@127.31.8.2"
)

// envMortal makes the test binary a program that connects to the address in it, and waits to be killed.
const envMortal = "ADVERB_TEST_MORTAL"

func TestMain(m *testing.M) {
	if to := os.Getenv(envMortal); to != "" {
		fmt.Println("mortal:", mortal(to))
		os.Exit(1)
	}
	tool.Main(m)
}

func mortal(to string) error {
	dev, err := verbs.Open(clientDevice)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), tooltest.Patience)
	defer cancel()
	c, err := (&rdmacm.Dialer{Devices: []*verbs.Device{dev}}).Dial(ctx, netip.MustParseAddrPort(to), &rdmacm.Config{KeepAlive: -1})
	if err != nil {
		return err
	}
	<-c.Disconnected()
	return c.Cause()
}

// TestHeir kills a program that is alone on its address but for the command. Its peer, which asks for no
// sign of life, is told.
func TestHeir(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	heir := tooltest.StartProcess(ctx, t, "adverb", "heir", clientDevice)
	if want := "stands by on " + clientDevice + "\n"; heir.FirstLine != want {
		t.Fatalf("got line %q, want %q", heir.FirstLine, want)
	}
	dev, err := verbs.Open(serverDevice)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{dev}}).Listen(netip.AddrPortFrom(netip.MustParseAddr(serverAddr), 0))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()

	client := exec.Command(os.Args[0])
	client.Env = append(os.Environ(), envMortal+"="+l.Addr().String())
	client.Stdout, client.Stderr = os.Stderr, os.Stderr
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	defer client.Wait()
	defer client.Process.Kill()
	r, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := r.Accept(ctx, &rdmacm.Config{KeepAlive: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for !hasWill(t, heir.PID) { // which can take long on a busy machine
		if ctx.Err() != nil {
			t.Fatal("the heir has not taken the client's will")
		}
		runtime.Gosched()
	}
	start := time.Now()
	client.Process.Kill()
	select {
	case <-conn.Disconnected():
	case <-ctx.Done():
		t.Fatal("a peer was killed, and nobody has told")
	}
	if err := conn.Cause(); !errors.Is(err, rdmacm.ErrDisconnected) {
		t.Errorf("got cause %v after %v, want %v", err, time.Since(start), rdmacm.ErrDisconnected)
	}
}

// hasWill reports whether a process has mapped the will of another.
func hasWill(t *testing.T, pid int) bool {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(maps)) {
		if f := strings.Fields(line); len(f) > 5 && f[1] == "r--s" && strings.HasPrefix(f[5], "/memfd:adverb-will") {
			return true
		}
	}
	return false
}

// TestRefuse: the command takes no connections, and ends when it is interrupted.
func TestRefuse(t *testing.T) {
	dev, err := verbs.Open(serverDevice)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{dev}}).Listen(netip.AddrPortFrom(netip.MustParseAddr(serverAddr), 0))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- refuse(ctx, l) }()
	if _, err := (&rdmacm.Dialer{Devices: []*verbs.Device{dev}}).Dial(t.Context(), l.Addr(), nil); !errors.Is(err, rdmacm.ErrRefused) {
		t.Errorf("got error %v, want %v", err, rdmacm.ErrRefused)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}

	ctx, cancel = context.WithCancel(t.Context())
	run := tool.Start(ctx, "adverb", "heir", clientDevice)
	cancel()
	if r := <-run.Done; r.Code != cli.StatusInterrupted || r.Stderr != "" {
		t.Errorf("interrupted: status %d, stderr %q; want %d and nothing", r.Code, r.Stderr, cli.StatusInterrupted)
	}
}

func TestArguments(t *testing.T) {
	for device, cause := range map[string]string{"soft_nosuch": "no such device", "iw_lo": "the kernel's"} {
		code, out, stderr := tool.Run(t.Context(), "adverb", "heir", device)
		if code != cli.ExitError || out != "" || !strings.Contains(stderr, cause) {
			t.Errorf("%s: status %d, stdout %q, stderr %q; want %d and %q", device, code, out, stderr, cli.ExitError, cause)
		}
	}
}

// In a user namespace that cannot tell the user from others the command would speak for nobody, and so it does not run.
func TestHeirAlone(t *testing.T) {
	if !usertest.In(t, usertest.Namespace()) {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	code, out, stderr := tool.Run(ctx, "adverb", "heir", clientDevice)
	if want := "its user cannot be told from others"; code != cli.ExitError || out != "" || !strings.Contains(stderr, want) {
		t.Errorf("status %d, stdout %q, stderr %q; want status %d, nothing, and %q", code, out, stderr, cli.ExitError, want)
	}
}

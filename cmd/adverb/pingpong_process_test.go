package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// asTool makes the test binary be the tool, for tests with processes.
const asTool = "ADVERB_TEST_AS_TOOL"

func TestMain(m *testing.M) {
	if os.Getenv(asTool) != "" {
		main()
	}
	os.Exit(m.Run())
}

// startProcess runs the tool as a process of its own, and returns when it has printed a line or
// is done.
func startProcess(ctx context.Context, t *testing.T, argv ...string) *started {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, exe)
	cmd.Args = argv
	// The race detector would have each process sleep for a second when it ends.
	cmd.Env = append(os.Environ(), asTool+"=1", "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &started{done: make(chan result, 1)}
	out := bufio.NewReader(stdout)
	s.firstLine, _ = out.ReadString('\n')
	go func() {
		rest, _ := io.ReadAll(out)
		cmd.Wait() // the status says it
		s.done <- result{cmd.ProcessState.ExitCode(), s.firstLine + string(rest), stderr.String()}
	}()
	return s
}

// Two processes use one device, one GID and so one UDP port.
func TestPingpongProcesses(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only on Linux do processes share an address")
	}
	for _, tt := range []struct {
		name, prog string
		flags      string
		host       string
		sep        string
		qps        int
		pingpongRun
	}{
		{"rc defaults", "ibv_rc_pingpong", "", "localhost", ",", 1, pingpongRun{"", 8192000, 1000}},
		{"rc GID 0", "ibv_rc_pingpong", "-g 0", "localhost", ",", 1, pingpongRun{"", 8192000, 1000}},
		{"rc IPv4", "ibv_rc_pingpong", "-d soft_lo -g GID -e", "127.0.0.1", ",", 1, pingpongRun{"", 8192000, 1000}},
		{"rc IPv6", "ibv_rc_pingpong", "-d soft_lo -g GID", "::1", ",", 1, pingpongRun{"", 8192000, 1000}},
		// What is lost stays lost here. So the address is one where no other test's processes come and go.
		{"uc", "ibv_uc_pingpong", "-d soft_lo@127.0.88.3", "127.0.0.1", ",", 1, pingpongRun{"", 8192000, 1000}},
		{"ud", "ibv_ud_pingpong", "-d soft_lo@127.0.88.3", "127.0.0.1", ":", 1, pingpongRun{"", 2048000, 1000}},
		{"srq", "ibv_srq_pingpong", "-d soft_lo -q 4", "127.0.0.1", ",", 4, pingpongRun{"", 8192000, 1000}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			index := ""
			if strings.Contains(tt.flags, "GID") {
				index = loopbackGID(t, tt.host)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			argv := append([]string{tt.prog, "-p", freePort(t)}, strings.Fields(strings.ReplaceAll(tt.flags, "GID", index))...)
			s := startProcess(ctx, t, argv...)
			c := startProcess(ctx, t, append(argv, tt.host)...)
			server, client := <-s.done, <-c.done
			checkRun(t, server, client, tt.sep, tt.qps, tt.pingpongRun)
			gid := func(line string) string { _, g, _ := strings.Cut(line, " GID "); return g }
			lines := endLines(server.stdout, tt.qps)
			if a, b := gid(lines[0]), gid(lines[tt.qps]); a != b {
				t.Errorf("the ends have GIDs %s and %s", a, b)
			}
		})
	}
}

// loopbackGID returns the place of an address in the GID table of soft_lo.
func loopbackGID(t *testing.T, addr string) string {
	t.Helper()
	entries, err := deviceGIDs("soft_lo")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.GID.Addr().String() == addr {
			return strconv.Itoa(e.Index)
		}
	}
	t.Skipf("soft_lo has no address %s", addr)
	return ""
}

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// A command whose capture is not whole has failed and says so, even if it closes no device: the connection manager's
// devices stay open until the command ends.
func TestCaptureCut(t *testing.T) {
	tooltest.Exclusive(t, "soft_lo")
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	dir, env := asPrograms(t)
	start := func(env []string, args ...string) (cmd *exec.Cmd, stderr *strings.Builder) {
		stderr = new(strings.Builder)
		cmd = exec.CommandContext(ctx, filepath.Join(dir, "adverb"), args...)
		cmd.Env, cmd.Stderr = env, stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, stderr
	}
	port := tooltest.FreeCMPort()
	server, _ := start(env, "rping", "-s", "-a", "127.0.0.1", "-p", port)
	for {
		pipe := filepath.Join(t.TempDir(), "pipe")
		if err := unix.Mkfifo(pipe, 0o600); err != nil {
			t.Skip(err)
		}
		began := make(chan error, 1)
		go func() { // the reader takes the beginning and goes: the pipe has no room for the rest
			f, err := os.Open(pipe)
			if err == nil {
				_, err = f.Read(make([]byte, 1))
				f.Close()
			}
			began <- err
		}()
		client, says := start(append(env, "ADVERB_PCAP="+pipe), "rping", "-c", "-C", "300", "-a", "127.0.0.1", "-p", port)
		err := client.Wait()
		if strings.Contains(says.String(), "no listener") && ctx.Err() == nil { // yet
			continue
		}
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok || exit.ExitCode() != 1 || !strings.Contains(says.String(), "adverb: write pcapng file: write "+pipe+": broken pipe\n") {
			t.Errorf("the client ends with %v, stderr %q, want status 1 and that the pipe is broken", err, says)
		}
		select {
		case err := <-began:
			if err != nil {
				t.Errorf("read the capture: %v", err)
			}
		case <-ctx.Done():
			t.Error("the client has not opened its capture")
		}
		break
	}
	if err := server.Wait(); err != nil {
		t.Errorf("the server, which captures nothing: %v, want no error", err)
	}
}

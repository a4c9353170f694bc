package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
)

// onHost is the tool on a host.
type onHost struct {
	linktest.Host
	t        *testing.T
	ctx      context.Context
	dir, dev string
	env      []string
}

// start starts the tool.
func (h *onHost) start(env string, args ...string) (wait func() (out string, err error)) {
	h.t.Helper()
	cmd := exec.CommandContext(h.ctx, filepath.Join(h.dir, "adverb"), args...)
	var out bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = append(h.env, env), &out, &out
	var err error
	h.Do(func() { err = cmd.Start() })
	if err != nil {
		h.t.Fatal(err)
	}
	return func() (string, error) { err := cmd.Wait(); return out.String(), err }
}

// run runs the client until its server listens.
func (h *onHost) run(env string, args ...string) (string, error) {
	h.t.Helper()
	for {
		out, err := h.start(env, args...)()
		if err == nil || h.ctx.Err() != nil || !strings.Contains(out, "refused") && !strings.Contains(out, "no listener") && !strings.Contains(out, "Couldn't connect") {
			return out, err
		}
	}
}

// TestRoCEv1: the tool's programs run over RoCEv1 between two hosts, by the index of a GID and by the connection manager.
// On the wire is nothing of RDMA but frames of RoCEv1, whose ICRCs are right.
func TestRoCEv1(t *testing.T) {
	a, b := linktest.TwoHosts(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*tooltest.Patience)
	defer cancel()
	dir, env := asPrograms(t)
	near, far := &onHost{a, t, ctx, dir, "soft_w0", env}, &onHost{b, t, ctx, dir, "soft_w1", env}
	var live *capture.Live
	var err error
	a.Do(func() { live, err = capture.OpenLive("w0") })
	if err != nil {
		t.Skip(err)
	}
	frames := make(chan map[string]int)
	end := make(chan struct{})
	go func() { frames <- count(live, end) }()

	file := filepath.Join(t.TempDir(), "packets.pcapng")
	cases := "^(rc|uc|ud|mcast|cm|srq|atomic)/"
	for index, name := range []string{"IPv4", "IPv6", "link-local"} {
		at := string(rune('0' + index))
		serve := far.start("ADVERB_ROCEV1=first", "verify", "-g", at, "--serve", far.dev)
		near.env = append(env, "ADVERB_PCAP=") // all but the last are not captured
		if name == "link-local" {
			near.env = append(env, "ADVERB_PCAP="+file)
		}
		out, err := near.run("ADVERB_ROCEV1=first", "verify", "-g", at, "--run", cases, near.dev, "10.93.0.2")
		peer, errPeer := serve()
		if err != nil || errPeer != nil || !strings.Contains(out, " 0 failed, 0 skipped\n") {
			t.Errorf("%s: %v, and %v of the peer:\n%s%s", name, err, errPeer, out, peer)
		}
	}
	near.env = env
	for _, c := range []struct{ env, server, client string }{
		{"ADVERB_ROCEV1=1", "rc_pingpong -d soft_w1 -g 3", "rc_pingpong -d soft_w0 -g 3 10.93.0.2"},
		{"ADVERB_ROCEV1=1", "write_bw -d soft_w1 -x 5 -n 100", "write_bw -d soft_w0 -x 5 -n 100 10.93.0.2"},
		{"ADVERB_ROCEV1=first", "rping -s -a 10.93.0.2 -C 3", "rping -c -a 10.93.0.2 -C 3"},
	} {
		serve := far.start(c.env, strings.Fields(c.server)...)
		out, err := near.run(c.env, strings.Fields(c.client)...)
		peer, errPeer := serve()
		if err != nil || errPeer != nil {
			t.Errorf("%s: %v, and %v of the peer:\n%s%s", c.client, err, errPeer, out, peer)
		}
	}
	close(end)
	got := <-frames
	live.Close()
	if n := got["RoCEv1"]; n < 1000 || len(got) != 1 {
		t.Errorf("frames on the wire: %v, want all of RoCEv1, and right", got)
	}
	decodeByTshark(ctx, t, file)
}

// count counts the frames of RDMA until the network is quiet after the end.
func count(live *capture.Live, end <-chan struct{}) map[string]int {
	all := map[string]int{}
	var dec capture.Decoder
	for {
		f, err := live.Next()
		if errors.Is(err, capture.ErrQuiet) {
			select {
			case <-end:
				return all
			default:
				continue
			}
		}
		if err != nil {
			return all
		}
		p, kind := dec.Decode(f)
		switch {
		case kind != capture.KindRoCE:
		case p.Version == capture.RoCEv1 && p.Err == nil && p.ICRC() == capture.ICRCGood:
			all["RoCEv1"]++
		default:
			all["other or damaged"]++
		}
	}
}

// decodeByTshark has tshark decode a capture. tshark guesses what payloads are, which are random bytes here; without the
// guesses it has nothing to warn of.
func decodeByTshark(ctx context.Context, t *testing.T, file string) {
	t.Helper()
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("CI must have tshark (Debian package tshark)")
		}
		t.Log("tshark is not installed (Debian package tshark)")
		return
	}
	args := []string{"-r", file, "-T", "fields", "-e", "frame.protocols", "-e", "_ws.expert.message"}
	guesses := []string{"rpcrdma_infiniband", "eth_over_ib", "mellanox_eoib", "iser_infiniband", "lnet_ib", "sdp_infiniband", "smcr_infiniband",
		"smb_direct_infiniband", "nvme_rdma", "fc_infiniband"}
	guesses = slices.DeleteFunc(guesses, func(g string) bool { // that this version does not know
		return exec.CommandContext(ctx, tshark, "-r", file, "-c", "1", "--disable-heuristic", g).Run() != nil
	})
	for _, g := range guesses {
		args = append(args, "--disable-heuristic", g)
	}
	out, err := exec.CommandContext(ctx, tshark, args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	bad := 0
	for _, line := range lines {
		if protocols, warning, _ := strings.Cut(line, "\t"); !strings.HasPrefix(protocols, "eth:ethertype:infiniband") || warning != "" {
			if bad++; bad < 5 {
				t.Errorf("tshark prints %q", line)
			}
		}
	}
	if len(lines) < 1000 {
		t.Errorf("tshark reads %d frames, want the %s's", len(lines), file)
	}
}

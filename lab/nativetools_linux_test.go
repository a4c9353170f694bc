package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
)

// nativeGuest is a guest whose kernel's device our programs drive, as they would a card.
type nativeGuest struct{ *Guest }

// Device returns the name of the device. Its GIDs are all addresses of the guest.
func (g nativeGuest) Device(bool) string { return g.Guest.Device }

// Start runs a program. "adverb" is the tool of this module, with cards.
func (g nativeGuest) Start(ctx context.Context, argv ...string) (*Process, error) {
	if argv[0] == "adverb" {
		argv = append([]string{nativeBinary}, argv[1:]...)
	}
	return g.Guest.Start(ctx, argv...)
}

var _ ourSide = nativeGuest{}

// gidIndex returns the index of a side's address in the GID table of the device that a program takes there.
func gidIndex(side Side, v6 bool) int {
	switch side := side.(type) {
	case *Guest:
		return side.GIDIndex(v6)
	case nativeGuest:
		return side.GIDIndex(v6)
	}
	return 0 // the only one
}

// TestNativeTools has our programs speak with themselves: on the kernel's rdma_rxe in the guest, by libibverbs and the kernel's
// connection manager, and on a software device here. Each end serves, over IPv4 and IPv6.
func TestNativeTools(t *testing.T) {
	needCards(t)
	l := ownLab(t.Context(), t, Config{MTU: 1500})
	put(t.Context(), t, l.Guest(0), nativeTool(t.Context(), t, l.Host()), nativeBinary)
	runNative(t, l, append(softOnBoth(l.MTU()), nativePrograms()...))
	nativeBesideC(t, l)
}

// TestNativeRelease is a part of TestNativeTools on a newer Linux and rdma-core.
func TestNativeRelease(t *testing.T) {
	needCards(t)
	if Release != "" {
		t.Skip("the guests of all tests are of the release that was chosen")
	}
	l := ownLab(t.Context(), t, Config{MTU: 1500, Release: otherRelease})
	put(t.Context(), t, l.Guest(0), nativeTool(t.Context(), t, l.Host()), nativeBinary)
	var programs []softProgram
	for _, p := range append(softOnBoth(l.MTU()), nativePrograms()...) {
		if p.name == "rping" || p.name == "write_bw" || p.name == "rcopy" {
			programs = append(programs, p)
		}
	}
	runNative(t, l, programs)
	for _, server := range []string{nativeServes(l), "adverb"} {
		s := scenario{family: nativeFamily, program: "verify", server: server, mtu: l.MTU(), variant: "FLUSH and ATOMIC WRITE, with a software device", on: l}
		if server != "adverb" {
			s.variant = "FLUSH (global alone) and ATOMIC WRITE, with a software device" // the guest has no persistent memory
		} else {
			s.note = " (client" + strings.TrimPrefix(nativeServes(l), "adverb") + ")"
		}
		s.run(t, func(ctx context.Context, t *testing.T, l *Lab) { runPlacement(ctx, t, l, s) })
	}
}

// runPlacement runs the conformance suite's cases of FLUSH and ATOMIC WRITE between Linux, which has them from 6.2 on, and a software
// device. The client is the requester.
func runPlacement(ctx context.Context, t *testing.T, l *Lab, s scenario) {
	port := nextPort()
	server, client := s.sides(l)
	skip := "^rc/error: flush and start anew$" // which is of another kind
	if s.server != "adverb" {
		skip += "|^rc/flush to a file$"
	}
	flags := []string{"--port", port, "--run", "^rc/(error: )?(flush|atomic write)", "--skip", skip}
	device := func(side Side) string { return side.(ourSide).Device(s.v6) }
	srv := start(ctx, t, server, append([]string{"adverb", "verify", "--serve", device(server)}, flags...)...)
	awaitListening(ctx, t, server, port, srv)
	cli := start(ctx, t, client, append([]string{"adverb", "verify", device(client), server.Addr(false).String(), "--json"}, flags...)...)
	var out struct{ Cases []outcome }
	if err := json.Unmarshal([]byte(finish(t, srv, cli)[1].Stdout), &out); err != nil {
		t.Fatal(err)
	}
	for _, c := range out.Cases {
		if c.Outcome != "pass" {
			t.Errorf("%s: %s\n%s", c.Case, c.Outcome, c.Why)
		}
	}
	if want := 9 - map[bool]int{true: 1}[s.server != "adverb"]; len(out.Cases) != want {
		t.Errorf("%d cases have run, want %d: %v", len(out.Cases), want, out.Cases)
	}
}

// TestNativeSiw is TestNativeTools by iWARP: on the kernel's siw, and on our iWARP device.
func TestNativeSiw(t *testing.T) {
	needCards(t)
	l := siwLab(t)
	put(t.Context(), t, l.Guest(0), nativeTool(t.Context(), t, l.Host()), nativeBinary)
	var programs []softProgram
	for _, p := range append(softOnBoth(l.MTU()), nativePrograms()...) {
		if p.name == "cmtime" {
			p.variant = "-c 20" // siw has no CQs for 50 connections: see siwCQs
		}
		if p.iwarp {
			programs = append(programs, p)
		}
	}
	runNative(t, l, programs)
}

// nativeIPv6 are the programs that run over IPv6 too. The others differ by what they do with a connection.
var nativeIPv6 = map[string]bool{"rc_pingpong": true, "rping": true, "cmatose": true, "udaddy": true, "mckey": true, "cmtime": true, "rcopy": true}

// runNative runs programs between the guest's kernel's device and a software device here.
func runNative(t *testing.T, l *Lab, programs []softProgram) {
	t.Helper()
	for _, program := range programs {
		for _, server := range []string{nativeServes(l), "adverb"} {
			for _, v6 := range []bool{false, true} {
				if v6 && !nativeIPv6[program.name] {
					continue
				}
				s := scenario{family: nativeFamily, program: program.name, server: server, v6: v6, mtu: l.MTU(), variant: program.variant, on: l}
				s.check.oneWay = program.oneWay
				if server == "adverb" {
					s.note = " (client" + strings.TrimPrefix(nativeServes(l), "adverb") + ")"
				}
				if v6 && program.name == "mckey" {
					s.leftOut = noIPv6Groups
				}
				s.run(t, func(ctx context.Context, t *testing.T, l *Lab) { program.run(ctx, t, l, s) })
			}
		}
	}
}

// nativeServes is the server of scenarios in which our software drives the guest's kernel's device, and serves.
func nativeServes(l *Lab) string {
	name := "adverb on " + strings.TrimSuffix(l.Guest(0).Device, "0")
	if l.cfg.Release != "" {
		name += " of " + l.cfg.Release
	}
	return name
}

// nativePrograms are those that run beside softOnBoth.
func nativePrograms() (programs []softProgram) {
	for _, p := range []perftest{
		{"send_bw", []string{"-n 50", "-n 50 -R", "-n 20 -c UD -s 1024", "-n 20 -b -R"}},
		{"send_lat", []string{"-n 50", "-n 50 -R"}},
		{"write_bw", []string{"-n 50", "-n 50 -R", "-n 20 -R -q 3 -s 5000"}},
		{"write_lat", []string{"-n 50", "-n 50 -R"}},
		{"read_bw", []string{"-n 50", "-n 50 -R"}},
		{"read_lat", []string{"-n 50", "-n 50 -R"}},
		{"atomic_bw", []string{"-n 50", "-n 50 -R"}},
		{"atomic_lat", []string{"-n 50", "-n 50 -R"}},
	} {
		for _, flags := range p.flags {
			byCM := strings.Contains(flags, "-R")
			programs = append(programs, softProgram{
				name: p.name, variant: flags, iwarp: byCM && !strings.HasPrefix(p.name, "atomic"),
				oneWay: strings.Contains(flags, "-c U"),
				run:    func(ctx context.Context, t *testing.T, l *Lab, s scenario) { p.run(ctx, t, l, s) },
			})
		}
	}
	for _, program := range []string{"rstream", "riostream"} {
		for _, size := range []int{64, 1_000_000} {
			programs = append(programs, softProgram{name: program, variant: fmt.Sprint(size), iwarp: true,
				run: func(ctx context.Context, t *testing.T, l *Lab, s scenario) { runRstream(ctx, t, l, s, size) }})
		}
	}
	for _, size := range []int{1, 5_000_000} {
		programs = append(programs, softProgram{name: "rcopy", variant: fmt.Sprint(size), iwarp: true,
			run: func(ctx context.Context, t *testing.T, l *Lab, s scenario) { runNativeRcopy(ctx, t, l, s, size) }})
	}
	return programs
}

// nativeBesideC has our programs and rdma-core's speak with each other on one device of the kernel's, which sends their
// packets to itself.
func nativeBesideC(t *testing.T, l *Lab) {
	t.Helper()
	g := l.Guest(0)
	for _, program := range []string{"rstream", "riostream", "rcopy"} {
		for _, server := range []string{nativeServes(l), "kernel"} {
			s := scenario{family: nativeFamily, program: program, server: server, mtu: l.MTU(), variant: "in one guest with rdma-core's", on: l}
			ours, theirs := Side(nativeGuest{g}), Side(g)
			srv, client := ours, theirs
			if server == "kernel" {
				srv, client = theirs, ours
			}
			t.Run(s.name(), func(t *testing.T) {
				recordTest(t, s.family, s.row(), s.variant)
				revive(t, g)
				ctx := within(t, patience)
				if program == "rcopy" {
					copyInGuest(ctx, t, &s, srv, client)
				} else {
					moveStreams(ctx, t, &s, srv, client, 100_001)
				}
			})
		}
	}
}

// copyInGuest copies a file of a guest by a server in the same guest, and compares it.
func copyInGuest(ctx context.Context, t *testing.T, s *scenario, server, client Side) {
	t.Helper()
	at := cmPort{rdmacm.PortSpaceTCP, nextPort()}
	from, to := "/run/from-"+at.port, "/run/to-"+at.port
	finish(t, start(ctx, t, client, "sh", "-c", `head -c 3000001 /dev/urandom >"$1"`, "make", from))
	args := []string{"-p", at.port}
	if _, ours := server.(ourSide); ours {
		args = append(args, "--into", "/")
	}
	s.startCM(ctx, t, server, at, cmArgv(server, "rcopy", args...)...)
	finish(t, start(ctx, t, client, cmArgv(client, "rcopy", from, server.Addr(false).String()+":"+to, "-p", at.port)...))
	finish(t, start(ctx, t, client, "sh", "-c", `test "$(sha256sum <"$1")" = "$(sha256sum <"$2")" && rm "$1" "$2"`, "compare", from, to))
}

// runNativeRcopy copies a file from the client to the server, and compares it.
func runNativeRcopy(ctx context.Context, t *testing.T, l *Lab, s scenario, size int) {
	at := cmPort{rdmacm.PortSpaceTCP, nextPort()}
	server, client := s.sides(l)
	dir := map[bool]string{true: t.TempDir(), false: "/run/rcopy-" + at.port} // whether it is this machine's
	atHost := func(side Side) bool { _, native := side.(nativeGuest); return !native }
	const make = `mkdir -p "$2" && head -c 1000003 /dev/urandom >"$2/part" && while cat "$2/part"; do :; done | head -c "$1" >"$2/out" && sha256sum <"$2/out"`
	made := start(ctx, t, client, "sh", "-c", make, "make", strconv.Itoa(size), dir[atHost(client)])
	finish(t, start(ctx, t, server, "mkdir", "-p", dir[atHost(server)]))
	want := finish(t, made)[0].Stdout
	s.startCM(ctx, t, server, at, "adverb", "rcopy", "-p", at.port, "--into", dir[atHost(server)])
	finish(t, start(ctx, t, client, "adverb", "rcopy", "-p", at.port, dir[atHost(client)]+"/out", net.JoinHostPort(server.Addr(s.v6).String(), "")+"/in"))
	got := finish(t, start(ctx, t, server, "sh", "-c", `sha256sum <"$1/in"`, "sum", dir[atHost(server)]))[0].Stdout
	if got != want {
		t.Errorf("SHA-256 of %d bytes: %s at the client, and %s at the server", size, want, got)
	}
}

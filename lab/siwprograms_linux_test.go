package lab

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// siwHost is this machine with its iWARP device: programs of ours take that one.
type siwHost struct{ *Host }

// Device returns the name of a device with that address alone.
func (h siwHost) Device(v6 bool) string { return fmt.Sprintf("iw_%s@%v", h.Interface, h.Addr(v6)) }

// Start runs a program. With the flag -keep, Start captures the packets that the program sends and
// receives.
func (h siwHost) Start(ctx context.Context, argv ...string) (*Process, error) {
	env := []string{"env", "ADVERB_IWARP=1"}
	if *keepFlag != "" {
		name := fmt.Sprintf("%s-%d.pcapng", strings.Join(argv[:min(2, len(argv))], "-"), siwCaptures.Add(1))
		env = append(env, "ADVERB_PCAP="+filepath.Join(*keepFlag, name))
	}
	return h.Host.Start(ctx, append(env, withPath(h.Host, argv)...)...)
}

var siwCaptures atomic.Int32

// withPath puts the path of our tool in place of its name, which only Host.Start knows.
func withPath(h *Host, argv []string) []string {
	if argv[0] != "adverb" {
		return argv
	}
	return append([]string{h.bin}, argv[1:]...)
}

// awaitCM waits until a program of ours listens: ports are those of TCP.
func (h siwHost) awaitCM(ctx context.Context, at cmPort) error {
	port, err := strconv.Atoi(at.port)
	if err != nil {
		return err
	}
	return h.AwaitTCP(ctx, port)
}

// bySiw reports whether a scenario is one of iWARP.
func (s *scenario) bySiw() bool { return s.on != nil && s.on.cfg.Device == deviceSiw }

// ours returns our side of a scenario between us and a kernel.
func (s *scenario) ours(l *Lab) ourSide {
	if s.bySiw() {
		return siwHost{l.Host()}
	}
	return l.Host()
}

// siwLab starts a lab whose guest has siw. Without one the test fails: its scenarios have an end of ours.
func siwLab(t *testing.T) *Lab {
	t.Helper()
	needLab(t)
	l, err := Start(within(t, bootPatience), Config{MTU: 1500, Device: deviceSiw})
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, l)
	return l
}

const siwNote = "iWARP (siw) "

// The streams of rstream and riostream go over iWARP too.
func TestSiwRstream(t *testing.T) {
	l := siwLab(t)
	for _, program := range []string{"rstream", "riostream"} {
		for _, server := range []string{"kernel", "adverb"} {
			for _, v6 := range []bool{false, true} {
				for _, size := range []int{64, 65536, 1000000} {
					s := scenario{family: "Rsockets", program: program, server: server, v6: v6, mtu: 1500, on: l, variant: siwNote + strconv.Itoa(size)}
					s.run(t, func(ctx context.Context, t *testing.T, l *Lab) { runRstream(ctx, t, l, s, size) })
				}
			}
		}
	}
}

// A large file goes each way.
func TestSiwRcopy(t *testing.T) {
	l := siwLab(t)
	for _, server := range []string{"kernel", "adverb"} {
		for _, size := range []int{1, 300_000_000} {
			s := scenario{family: "Rsockets", program: "rcopy", server: server, mtu: 1500, on: l, variant: siwNote + strconv.Itoa(size), patience: 2 * patience}
			s.run(t, func(ctx context.Context, t *testing.T, l *Lab) { runRcopy(ctx, t, l, s, size) })
		}
	}
}

// perftest's programs connect by the connection manager over iWARP, and both ends end well.
func TestSiwPerftest(t *testing.T) {
	l := siwLab(t)
	for _, p := range []perftest{
		{"send_bw", []string{"-n 50 -R", "-n 20 -R -b"}},
		{"send_lat", []string{"-n 50 -R"}},
		{"write_bw", []string{"-n 50 -R"}},
		{"read_bw", []string{"-n 50 -R"}},
		{"read_lat", []string{"-n 50 -R"}},
	} {
		for _, server := range []string{"kernel", "adverb"} {
			for _, flags := range p.flags {
				s := scenario{family: "perftest", program: p.name, server: server, mtu: 1500, on: l, variant: siwNote + flags}
				s.run(t, func(ctx context.Context, t *testing.T, l *Lab) {
					s.variant = flags
					p.run(ctx, t, l, s)
				})
			}
		}
	}
}

var _ ourSide = siwHost{}

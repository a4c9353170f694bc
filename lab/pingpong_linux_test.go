package lab

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// pingpong is one of the four programs.
type pingpong struct {
	name     string
	datagram bool // a message is one packet, and there is no option for the path MTU
	qps      int
}

var pingpongs = []pingpong{
	{name: "rc_pingpong", qps: 1},
	{name: "uc_pingpong", qps: 1},
	{name: "ud_pingpong", qps: 1, datagram: true},
	{name: "srq_pingpong", qps: 16},
}

// pathMTU is what an RDMA device makes of a network's MTU.
func pathMTU(mtu int) int {
	if mtu < 4096 {
		return 1024
	}
	return 4096
}

// sizes of messages: the smallest, one that needs padding, and such that need many packets.
func (p *pingpong) sizes(mtu int) []int {
	if p.datagram {
		return []int{1, pathMTU(mtu) - 1}
	}
	return []int{1, 4095, 65536, 1048576}
}

// rounds is fewer for larger messages: emulation is slow.
func rounds(size int) int { return max(6, min(400, 1<<20/size)) }

func TestPingpong(t *testing.T) {
	needLab(t)
	for _, mtu := range mtus {
		for _, p := range pingpongs {
			for _, server := range []string{"kernel", "adverb"} {
				for _, v6 := range []bool{false, true} {
					for _, size := range p.sizes(mtu) {
						s := scenario{family: "Pingpong", program: p.name, server: server, v6: v6, mtu: mtu, variant: strconv.Itoa(size)}
						s.run(t, func(ctx context.Context, t *testing.T, l *Lab) {
							p.run(ctx, t, l, s, size)
						})
					}
				}
			}
		}
	}
}

func (p *pingpong) run(ctx context.Context, t *testing.T, l *Lab, s scenario, size int) {
	port := nextPort()
	n, qps := rounds(size), p.qps
	if qps > 1 && size >= 1<<20 {
		// Each QP sends at once: 16 MiB either way keep an emulated guest busy for longer than
		// the programs' timeout and their 7 retries allow.
		qps = 2
	}
	options := []string{"-p", port, "-s", strconv.Itoa(size), "-n", strconv.Itoa(n), "-c"}
	if !p.datagram {
		options = append(options, "-m", strconv.Itoa(pathMTU(s.mtu)))
	}
	if p.qps > 1 {
		options = append(options, "-q", strconv.Itoa(qps))
	}
	argv := func(side Side) []string {
		if ours, ok := side.(ourSide); ok {
			return append([]string{"adverb", p.name, "-d", ours.Device(s.v6), "-g", "0"}, options...)
		}
		return append([]string{"ibv_" + p.name, "-d", l.Guest(0).Device, "-g", strconv.Itoa(l.Guest(0).GIDIndex(s.v6))}, options...)
	}
	server, client := s.sides(l)
	srv := start(ctx, t, server, argv(server)...)
	awaitListening(ctx, t, server, port, srv)
	// The C programs talk TCP over IPv4 only, whatever the GIDs are.
	cli := start(ctx, t, client, append(argv(client), server.Addr(false).String())...)
	left := finish(t, srv, cli)
	comparePingpong(t, left[0].Stdout, left[1].Stdout, qps, size*n*2)
	if t.Failed() {
		t.Logf("%s%s", srv.Report(), cli.Report())
	}
}

// comparePingpong checks that two programs agree on who took part, and on what was moved.
func comparePingpong(t *testing.T, server, client string, qps, bytes int) {
	t.Helper()
	local, remote := pingpongEnds(server, "local"), pingpongEnds(server, "remote")
	if len(local) != qps || len(remote) != qps {
		t.Errorf("the server names %d and %d ends, want %d of each", len(local), len(remote), qps)
	}
	if got := pingpongEnds(client, "remote"); !slices.Equal(got, local) {
		t.Errorf("the client has the server at %q, it is at %q", got, local)
	}
	if got := pingpongEnds(client, "local"); !slices.Equal(got, remote) {
		t.Errorf("the server has the client at %q, it is at %q", remote, got)
	}
	for name, out := range map[string]string{"server": server, "client": client} {
		if want := fmt.Sprintf("\n%d bytes in ", bytes); !strings.Contains(out, want) {
			t.Errorf("the %s does not say %q", name, want)
		}
		if strings.Contains(out, "invalid data") { // of option -c: the exit status does not tell
			t.Errorf("the %s: %s", name, out)
		}
	}
}

// pingpongEnds returns the QPNs, PSNs and GIDs of lines as
// "  local address:  LID 0x0000, QPN 0x000011, PSN 0x6ecf3b, GID ::ffff:10.0.0.1".
func pingpongEnds(out, which string) (ends []string) {
	for line := range strings.Lines(out) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), which+" address:")
		if !ok {
			continue
		}
		_, end, _ := strings.Cut(rest, ", ") // LIDs mean nothing here
		numbers, gid, _ := strings.Cut(end, "GID ")
		addr, err := netip.ParseAddr(gid)
		if err != nil {
			return append(ends, "no GID in "+line)
		}
		ends = append(ends, strings.TrimRight(numbers, ",: ")+" "+addr.Unmap().String())
	}
	return ends
}

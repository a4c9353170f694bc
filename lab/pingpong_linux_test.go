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

// pingpong is one of the four pingpong programs.
type pingpong struct {
	name     string
	datagram bool // each message is one packet, and the program has no option for the path MTU
	qps      int
}

var pingpongs = []pingpong{
	{name: "rc_pingpong", qps: 1},
	{name: "uc_pingpong", qps: 1},
	{name: "ud_pingpong", qps: 1, datagram: true},
	{name: "srq_pingpong", qps: 16},
}

// pathMTU returns the largest path MTU of RDMA that fits a network's MTU, for the MTUs of the lab.
func pathMTU(mtu int) int {
	if mtu < 4096 {
		return 1024
	}
	return 4096
}

// sizes returns sizes of messages: the smallest, one that needs padding, and, except for datagrams,
// some that need many packets.
func (p *pingpong) sizes(mtu int) []int {
	if p.datagram {
		return []int{1, pathMTU(mtu) - 1}
	}
	return []int{1, 4095, 65536, 1048576}
}

// rounds returns a number of rounds. The number is smaller for larger messages, because emulation
// is slow.
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
		// All QPs send at once. With 16 QPs that is 16 MiB in each direction. An emulated guest is
		// busy with it for longer than the programs' timeout and their 7 retries allow.
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
			return append([]string{"adverb", p.name, "-d", ours.Device(s.v6), "-g", strconv.Itoa(gidIndex(side, s.v6))}, options...)
		}
		return append([]string{"ibv_" + p.name, "-d", l.Guest(0).Device, "-g", strconv.Itoa(gidIndex(side, s.v6))}, options...)
	}
	server, client := s.sides(l)
	srv := start(ctx, t, server, argv(server)...)
	awaitListening(ctx, t, server, port, srv)
	// The C programs use TCP over IPv4 even if the GIDs are IPv6 addresses.
	cli := start(ctx, t, client, append(argv(client), server.Addr(false).String())...)
	left := finish(t, srv, cli)
	comparePingpong(t, left[0].Stdout, left[1].Stdout, qps, size*n*2)
	if t.Failed() {
		t.Logf("%s%s", srv.Report(), cli.Report())
	}
}

// comparePingpong checks that two programs name the same QPs, and the number of bytes that were
// moved.
func comparePingpong(t *testing.T, server, client string, qps, bytes int) {
	t.Helper()
	local, remote := pingpongEnds(server, "local"), pingpongEnds(server, "remote")
	if len(local) != qps || len(remote) != qps {
		t.Errorf("the server names %d and %d ends, want %d of each", len(local), len(remote), qps)
	}
	if got := pingpongEnds(client, "remote"); !slices.Equal(got, local) {
		t.Errorf("the server in the client's words: got %q, want the server's own %q", got, local)
	}
	if got := pingpongEnds(client, "local"); !slices.Equal(got, remote) {
		t.Errorf("the client in its own words: got %q, want the server's %q", got, remote)
	}
	for name, out := range map[string]string{"server": server, "client": client} {
		if want := fmt.Sprintf("\n%d bytes in ", bytes); !strings.Contains(out, want) {
			t.Errorf("the %s does not say %q", name, want)
		}
		if strings.Contains(out, "invalid data") { // with -c the server looks at the data, but its exit status does not show what it finds
			t.Errorf("the %s has found invalid data, want none: %s", name, out)
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
		_, end, _ := strings.Cut(rest, ", ") // LIDs have no meaning for RoCE
		numbers, gid, _ := strings.Cut(end, "GID ")
		addr, err := netip.ParseAddr(gid)
		if err != nil {
			return append(ends, "no GID in "+line)
		}
		ends = append(ends, strings.TrimRight(numbers, ",: ")+" "+addr.Unmap().String())
	}
	return ends
}

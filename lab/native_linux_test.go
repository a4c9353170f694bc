package lab

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// The tests in this file drive the kernel's rdma_rxe in a guest through rdma-core's libibverbs, as a card is driven: the tool
// with cards runs in the guest, with the libraries of the guest's packages.

const (
	nativeFamily = "Cards: provider/native in the guest"
	nativeBinary = "/run/adverb-native"
	nativeServes = "adverb on rdma_rxe"
)

// nativePatience is for the conformance suite, 8 cases of which run out of time on rdma_rxe.
const nativePatience = 20 * time.Minute

// nativeTool builds the tool that has cards.
func nativeTool(ctx context.Context, t *testing.T, h *Host) string {
	t.Helper()
	out := t.TempDir() + "/adverb-native"
	finish(t, start(ctx, t, h, "env", "CGO_ENABLED=0", "go", "build", "-tags", "adverb_native", "-o", out, modulePath+"cmd/adverb"))
	return out
}

// Why cases of the conformance suite do not pass on rdma_rxe. The causes are in the driver's source, of Linux 6.1.
const (
	rxeSQE      = "rxe has no state SQE: a failed send takes a UC or UD QP to ERR"
	rxeCapacity = "rxe makes queues with room for 2^n-1 work requests, and does not tell"
	rxeIOVA     = "the kernel takes an IOVA only that lies as far into a page as the memory does"
	rxeLastWQE  = "rxe raises no LAST_WQE_REACHED"
	rxeDrain    = "rxe ends a draining, and sends what was posted in SQD, with the next work request alone"
	rxeGroup    = "rxe has the interface take frames for an IPv6 group; the host's IP joins by the connection manager alone"
	rxeBounds   = "rxe holds a request to the bounds of the region, and not to the window's"
	rxeRereg    = "rdma-core has no rereg_mr for rxe"
	notPromised = "it is not guaranteed"
	notPosted   = "ibv_post_send has no FLUSH and no ATOMIC WRITE"
)

// rxeKnown are the cases that do not pass, each with how they end and why. "some" is a case that passes or fails.
var rxeKnown = map[string]struct{ outcome, cause string }{
	"state/walk":                                 {"some", rxeDrain},
	"state/values out of range":                  {"fail", "rxe takes a P_Key index beyond the table, and an MTU beyond the port's"},
	"rc/full queues":                             {"fail", rxeCapacity},
	"event/communication established":            {"fail", "rxe raises no COMM_EST"},
	"event/send queue drained":                   {"fail", rxeDrain},
	"mr/zero based":                              {"some", rxeIOVA},
	"mr/iova":                                    {"some", rxeIOVA},
	"mr/rereg keeps addresses":                   {"fail", rxeIOVA},
	"uc/send queue error":                        {"fail", rxeSQE},
	"ud/send queue error":                        {"fail", rxeSQE},
	"ud/Q_Key":                                   {"fail", "rxe does not put the QP's own Q_Key in the place of one whose top bit is set"},
	"ud/multicast":                               {"fail", rxeGroup},
	"ud/multicast to many QPs":                   {"fail", rxeGroup},
	"srq/limit":                                  {"fail", rxeLastWQE},
	"srq/last WQE":                               {"fail", rxeLastWQE},
	"srq/message too long":                       {"fail", rxeLastWQE},
	"mw/type 1: access and bounds":               {"fail", rxeBounds},
	"mw/type 2: access and bounds":               {"fail", rxeBounds},
	"mw/type 2: send with invalidate":            {"fail", "rxe completes the receive without the key that was invalidated"},
	"mw/type 2: send with a bad invalidate":      {"fail", "rxe completes the receive with an error, and sends no NAK"},
	"mw/type 2: refused binds":                   {"fail", "rxe takes the low 8 bits of the key that a bind names, and does not look at the others"},
	"rc/watching memory":                         {"skip", notPromised},
	"cq/exact events":                            {"skip", notPromised},
	"cq/resize":                                  {"skip", notPromised},
	"cq/overflow":                                {"skip", notPromised},
	"cq/timestamps":                              {"skip", "rxe has no clock"},
	"rc/atomic write":                            {"skip", notPosted},
	"rc/atomic write behind flush":               {"skip", notPosted},
	"rc/flush":                                   {"skip", notPosted},
	"rc/flush to a file":                         {"skip", notPosted},
	"rc/error: flush of a region without access": {"skip", notPosted},
	"rc/error: flush by a QP without access":     {"skip", notPosted},
	"rc/error: flush beyond the region":          {"skip", notPosted},
	"rc/error: atomic write to a region without access": {"skip", notPosted},
	"rc/error: atomic write by a QP without access":     {"skip", notPosted},
	"rc/error: placement that is none":                  {"skip", notPosted},
	"mr/rereg access":                                   {"skip", rxeRereg},
	"mr/rereg memory":                                   {"skip", rxeRereg},
	"mr/rereg PD":                                       {"skip", rxeRereg},
	"mr/rereg all":                                      {"skip", rxeRereg},
	"mr/rereg errors":                                   {"skip", rxeRereg},
}

// rxeHurt is the case that is left out: to close a QP that has bound a window ends in a fault of the kernel, in
// rxe_destroy_qp, since rxe's windows hold their QPs.
const rxeHurt = "^mw/type 2: the QP goes$"

// TestNativeConformance runs the conformance suite on a kernel's rdma_rxe. A case that fails is known, and one that passes is not
// known to fail.
func TestNativeConformance(t *testing.T) {
	needLab(t)
	ctx := within(t, nativePatience)
	l := ownLab(ctx, t, Config{MTU: 1500})
	g := l.Guest(0)
	recordTest(t, nativeFamily, resultRow{program: "verify", server: nativeServes}, "the conformance suite, with a table of what rdma_rxe does otherwise")
	put(ctx, t, g, nativeTool(ctx, t, l.Host()), nativeBinary)
	p := start(ctx, t, g, nativeBinary, "verify", g.Device, "--json", "--skip", rxeHurt)
	res, err := p.Wait()
	var out struct {
		Cases []struct{ Case, Outcome, Why string }
	}
	if err == nil {
		err = json.Unmarshal([]byte(res.Stdout), &out)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, p.Report())
	}
	count, seen := map[string]int{}, map[string]bool{}
	for _, c := range out.Cases {
		count[c.Outcome]++
		seen[c.Case] = true
		switch known, ok := rxeKnown[c.Case]; {
		case !ok && c.Outcome != "pass":
			t.Errorf("%s: %s\n%s", c.Case, c.Outcome, c.Why)
		case ok && known.outcome != "some" && known.outcome != c.Outcome:
			t.Errorf("%s: %s, and is known to %s (%s)\n%s", c.Case, c.Outcome, known.outcome, known.cause, c.Why)
		}
	}
	for name := range rxeKnown {
		if !seen[name] {
			t.Errorf("%s is known, and there is no such case", name)
		}
	}
	t.Logf("%d pass, %d fail, %d are skipped", count["pass"], count["fail"], count["skip"])
}

// TestNativeTools has our programs speak with themselves: on rdma_rxe in the guest by libibverbs and the kernel's connection
// manager, and on a software device here. Each end serves.
func TestNativeTools(t *testing.T) {
	needLab(t)
	ctx := t.Context()
	l := ownLab(ctx, t, Config{MTU: 1500})
	g, h := l.Guest(0), l.Host()
	put(ctx, t, g, nativeTool(ctx, t, h), nativeBinary)
	for _, program := range []struct{ name, server, client string }{
		{"rping", "rping -s -a HERE -C 5 -v -p PORT", "rping -c -a THERE -C 5 -v -p PORT"},
		{"cmatose", "cmatose -b HERE -p PORT", "cmatose -s THERE -p PORT"},
		{"udaddy", "udaddy -b HERE --port PORT", "udaddy -s THERE --port PORT"},
		{"rc_pingpong", "rc_pingpong -d DEVICE -n 100 -p PORT", "rc_pingpong -d DEVICE -n 100 -p PORT THERE"},
		{"write_bw", "write_bw -d DEVICE -n 50 -p PORT", "write_bw -d DEVICE -n 50 -p PORT THERE"},
		{"write_bw -R", "write_bw -R -d DEVICE -n 50 -p PORT", "write_bw -R -d DEVICE -n 50 -p PORT THERE"},
	} {
		for _, server := range []string{nativeServes, "adverb"} {
			s := scenario{family: nativeFamily, program: program.name, server: server, mtu: l.MTU(), variant: "RoCE", on: l, check: packetRules{oneWay: true}}
			s.run(t, func(ctx context.Context, t *testing.T, l *Lab) {
				port := nextPort()
				inGuest := func(line string) *Process {
					return start(ctx, t, g, append([]string{nativeBinary}, words(line, port, g.Device, g, h)...)...)
				}
				here := func(line string) *Process {
					return start(ctx, t, h, append([]string{h.bin}, words(line, port, h.Device(false), h, g)...)...)
				}
				serve, ask := inGuest, here
				if server == "adverb" {
					serve, ask = here, inGuest
				}
				converse(ctx, t, serve(program.server), func() *Process { return ask(program.client) })
			})
		}
	}
}

// converse starts clients until the server listens for one, and waits until both ends have ended well.
func converse(ctx context.Context, t *testing.T, srv *Process, client func() *Process) {
	t.Helper()
	for {
		cli := client()
		res, err := cli.Wait()
		if err == nil && res.Status.Code != 0 && strings.Contains(res.Stdout+res.Stderr, "refused") && ctx.Err() == nil {
			continue // the server does not listen yet
		}
		if _, err := ends(srv, cli); err != nil {
			t.Fatal(err)
		}
		return
	}
}

// words are the arguments of a program.
func words(line, port, device string, own, peer Side) []string {
	return strings.Fields(strings.NewReplacer("HERE", own.Addr(false).String(), "THERE", peer.Addr(false).String(), "PORT", port, "DEVICE", device).Replace(line))
}

// TestNativeSiw has our programs speak iWARP: on the kernel's siw in the guest, and on a software device here. The end that
// sends first is one that siw does not keep waiting: siw overlooks data that comes before siw has accepted.
func TestNativeSiw(t *testing.T) {
	needLab(t)
	ctx := within(t, bootPatience+4*patience)
	l := ownLab(ctx, t, Config{MTU: 1500, Device: deviceSiw})
	g, h := l.Guest(0), l.Host()
	put(ctx, t, g, nativeTool(ctx, t, h), nativeBinary)
	ours := []string{"env", "ADVERB_IWARP=1", h.bin}
	for _, program := range []struct{ name, server, serves, client string }{
		{"rping", "adverb", "rping -s -a HERE -C 5 -v -p PORT", "rping -c -a THERE -C 5 -v -p PORT"},
		{"cmatose", nativeServes, "cmatose -b HERE -p PORT", "cmatose -s THERE -p PORT"},
	} {
		t.Run(program.name, func(t *testing.T) {
			recordTest(t, nativeFamily, resultRow{program: program.name, server: strings.Replace(program.server, "rdma_rxe", "siw", 1), ip: "IPv4", mtu: l.MTU()}, "iWARP")
			port := nextPort()
			ctx := within(t, time.Minute)
			inGuest := func(line string) *Process {
				return start(ctx, t, g, append([]string{nativeBinary}, words(line, port, g.Device, g, h)...)...)
			}
			here := func(line string) *Process {
				return start(ctx, t, h, append(ours, words(line, port, "", h, g)...)...)
			}
			serve, ask := inGuest, here
			if program.server == "adverb" {
				serve, ask = here, inGuest
			}
			converse(ctx, t, serve(program.serves), func() *Process { return ask(program.client) })
		})
	}
}

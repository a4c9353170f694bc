package diagnose_test

import (
	"bytes"
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/pcap"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/rdmatest/cmtest"
	"github.com/adverb-rdma/adverb/verbs"
)

// pair is two devices on a network of another kind than RoCEv2's.
type pair struct {
	t    *testing.T
	a, b *verbs.Device
}

func (p *pair) connect(o rdmatest.Options) ends {
	x, y := rdmatest.Connect(p.t, p.a, p.b, o)
	return ends{x, y, x.MR(regionSize), y.MR(regionSize)}
}

// links are the networks, which capture all their packets. loss is a share.
var links = []struct {
	name string
	open func(t *testing.T, loss float64, out *bytes.Buffer) *pair
}{
	{"RoCEv1", func(t *testing.T, loss float64, out *bytes.Buffer) *pair {
		net := sim.New(sim.Config{Seed: 1, Loss: loss})
		w, err := pcap.New(out, pcap.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
		draw := uint32(1)
		open := func(name, addr string) *verbs.Device {
			dev, err := hca.Open(net.Netdev(name, link.V1(netip.MustParseAddr(addr)), netip.MustParseAddr(addr)), hca.Config{
				Name: name, Standard: true, Random: func() uint32 { draw = draw*1664525 + 1013904223; return draw }, Middleware: []link.Middleware{w.Middleware()}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { dev.Close() })
			return verbs.NewDevice(dev)
		}
		return &pair{t, open("a", "10.0.0.1"), open("b", "10.0.0.2")}
	}},
	{"InfiniBand", func(t *testing.T, loss float64, out *bytes.Buffer) *pair {
		net := rdmatest.New(t, rdmatest.Config{Seed: 1, InfiniBand: true, Loss: loss})
		net.Capture(out)
		return &pair{t, net.Device(), net.Device()}
	}},
	{"InfiniBand, two switches", func(t *testing.T, loss float64, out *bytes.Buffer) *pair {
		net := rdmatest.New(t, rdmatest.Config{Seed: 1, InfiniBand: true, Loss: loss})
		net.Capture(out)
		left, right := net.Switch("left"), net.Switch("right")
		left.Connect(right)
		return &pair{t, left.Device(), right.Device()}
	}},
}

// linkScenarios are what happens there.
var linkScenarios = []struct {
	name string
	loss float64
	run  func(p *pair)
	want []string
}{
	{name: "nothing", run: func(p *pair) {
		e := p.connect(rdmatest.Options{})
		e.traffic(3)
		e = p.connect(rdmatest.Options{GRH: true})
		e.traffic(3)
	}},
	{name: "nothing, with a connection manager", run: func(p *pair) {
		x, y := cmtest.Dial(p.t, p.a, p.b, nil, nil)
		synctest.Wait()
		x.Close()
		<-y.Disconnected()
		synctest.Wait()
	}},
	{name: "one packet in fifty is lost", loss: 0.02, run: func(p *pair) {
		e := p.connect(rdmatest.Options{})
		e.traffic(20)
	}, want: []string{"LOSS-ACK", "LOSS-NAK", "LOSS-PATH", "LOSS-TIMEOUT"}},
	{name: "no receive is posted", run: func(p *pair) {
		e := p.connect(rdmatest.Options{Retry: verbs.Retry{RNRRetryCount: 2}})
		e.post(verbs.OpSend, 8)
		e.x.Next()
	}, want: []string{"RNR"}},
	{name: "a wrong rkey", run: func(p *pair) {
		e := p.connect(rdmatest.Options{})
		e.traffic(1)
		remote := e.dst.Remote(0)
		remote.RKey ^= 0x100
		e.x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{e.src.SGE(0, 8)}, Remote: remote})
		e.x.Next()
	}, want: []string{"NAK-ACCESS"}},
	{name: "the peer's queue pair is not there", run: func(p *pair) {
		e := p.connect(rdmatest.Options{})
		e.y.QP.Close()
		e.post(verbs.OpRDMAWrite, 8)
		e.x.Next()
	}, want: []string{"RC-SILENT"}},
	{name: "nobody listens", run: func(p *pair) {
		gid, err := p.b.GID(1, 0)
		if err != nil {
			p.t.Fatal(err)
		}
		l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{p.b}}).Listen(netip.AddrPortFrom(gid.GID.Addr(), 0)) // on another port
		if err != nil {
			p.t.Fatal(err)
		}
		defer l.Close()
		if _, err := (&rdmacm.Dialer{Devices: []*verbs.Device{p.a}}).Dial(context.Background(), netip.AddrPortFrom(gid.GID.Addr(), 7471), nil); err == nil {
			p.t.Error("a connection to nobody, want an error")
		}
	}, want: []string{"CM-REJ-8"}},
}

// Faults have their findings on other links than RoCEv2's too. docs/DIAGNOSE.md has the table.
func TestLinks(t *testing.T) {
	rows := "| what happens"
	for _, l := range links {
		rows += " | " + l.name
	}
	rows += " |\n" + strings.Repeat("|---", 1+len(links)) + "|\n"
	for _, s := range linkScenarios {
		rows += "| " + s.name
		for _, l := range links {
			t.Run(s.name+"/"+l.name, func(t *testing.T) {
				var file bytes.Buffer
				synctest.Test(t, func(t *testing.T) {
					s.run(l.open(t, s.loss, &file))
					synctest.Wait()
				})
				r := diagnoseBytes(t, file.Bytes())
				got := idsOf(r.Findings)
				if !slices.Equal(got, s.want) {
					var text strings.Builder
					r.Print(&text)
					t.Errorf("%v, want %v\n%s", got, s.want, &text)
				}
				for _, u := range r.Unchecked {
					if !strings.HasPrefix(u, "no answers were captured") && !strings.HasPrefix(u, "how ") {
						t.Errorf("not checked: %q", u)
					}
				}
				rows += " | " + cmp.Or(strings.Join(got, ", "), "nothing")
			})
		}
		rows += " |\n"
	}
	if !t.Failed() {
		compareDocument(t, "links", rows)
	}
}

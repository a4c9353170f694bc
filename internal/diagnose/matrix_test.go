package diagnose_test

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/diagnose"
	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/fault"
	"github.com/adverb-rdma/adverb/internal/link/pcap"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/rdmatest/cmtest"
	"github.com/adverb-rdma/adverb/verbs"
)

var update = flag.Bool("update", false, "write the matrix in docs/DIAGNOSE.md")

// points are where captures are made.
var points = []string{"sender", "receiver", "both"}

// world is two devices on a simulated network, of which three captures are made.
type world struct {
	t            *testing.T
	net          *sim.Network
	a, b         *verbs.Device
	addrA, addrB netip.Addr
	files        map[string]*bytes.Buffer
	writers      []*pcap.Writer
}

func newWorld(t *testing.T, c sim.Config, standard bool) *world {
	c.Seed = 1
	w := &world{t: t, net: sim.New(c), addrA: netip.MustParseAddr("10.0.0.1"), addrB: netip.MustParseAddr("10.0.0.2"), files: map[string]*bytes.Buffer{}}
	shown := map[string]link.Middleware{}
	for _, p := range points {
		w.files[p] = new(bytes.Buffer)
		out, err := pcap.New(w.files[p], pcap.Options{})
		if err != nil {
			t.Fatal(err)
		}
		w.writers = append(w.writers, out)
		shown[p] = out.Middleware()
	}
	draw := uint32(1)
	random := func() uint32 { draw = draw*1664525 + 1013904223; return draw }
	open := func(name string, addr netip.Addr, at string) *verbs.Device {
		dev, err := hca.Open(w.net.Netdev(name, addr), hca.Config{Name: name, Random: random, Standard: standard, Middleware: []link.Middleware{shown["both"], shown[at]}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dev.Close() })
		return verbs.NewDevice(dev)
	}
	w.a, w.b = open("a", w.addrA, "sender"), open("b", w.addrB, "receiver")
	return w
}

// plan gives a packet from a to b a fate, or from b to a.
func (w *world) plan(back bool, nth uint64, what fault.Plan) {
	from, to := w.addrA, w.addrB
	if back {
		from, to = to, from
	}
	w.net.Plan(from, to, nth, what)
}

// ends are a connection's, with a region each.
type ends struct {
	x, y     *rdmatest.Endpoint
	src, dst *verbs.MR
}

const regionSize = 1 << 16

func (w *world) connect(o rdmatest.Options) ends {
	x, y := rdmatest.Connect(w.t, w.a, w.b, o)
	return ends{x, y, x.MR(regionSize), y.MR(regionSize)}
}

// post posts a request of n bytes, signaled.
func (e *ends) post(op verbs.Opcode, n int) {
	e.x.Send(verbs.SendWR{Op: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{e.src.SGE(0, n)}, Remote: e.dst.Remote(0)})
}

// flushable is a connection whose target region may be flushed, and whose QP allows it.
func (w *world) flushable(allowed bool) ends {
	const access = rdmatest.Access | verbs.AccessFlushGlobal
	e := w.connect(rdmatest.Options{})
	mr, err := e.y.PD.AllocMR(regionSize, access)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { mr.Close() })
	e.dst = mr
	if allowed {
		if err := e.y.QP.Modify(&verbs.QPAttr{Access: access}, verbs.MaskAccessFlags); err != nil {
			w.t.Fatal(err)
		}
	}
	return e
}

// flush flushes a part of the target region.
func (e *ends) flush() {
	e.x.Send(verbs.SendWR{Op: verbs.OpFlush, Flags: verbs.SendSignaled, Remote: e.dst.Remote(0), Flush: verbs.Flush{Length: 64, Placement: verbs.FlushGlobal}})
	e.x.Done()
}

// traffic is WRITEs and READs, some of them long, one after the other.
func (e *ends) traffic(rounds int) {
	for range rounds {
		for _, n := range []int{8, 1000, 40000} {
			e.post(verbs.OpRDMAWrite, n)
			e.x.Done()
			e.post(verbs.OpRDMARead, n)
			e.x.Done()
		}
		synctest.Wait()
	}
}

// disturbed is traffic, a request during which the network does something to the n-th packet from a to b, or back, and
// traffic again.
func disturbed(back bool, nth uint64, what fault.Plan, op verbs.Opcode, n int) func(w *world) {
	return func(w *world) {
		e := w.connect(rdmatest.Options{})
		e.traffic(2)
		w.plan(back, nth, what)
		e.post(op, n)
		e.x.Done()
		e.traffic(1)
	}
}

// long is much traffic.
func long(w *world) {
	e := w.connect(rdmatest.Options{})
	e.traffic(20)
}

// scenarios are the faults, and the findings that each must have.
var scenarios = []struct {
	name     string
	config   sim.Config
	standard bool // the ends use no extension, as cards
	run      func(w *world)
	want     map[string][]string // by point of the capture; "" for all
}{
	{name: "nothing", run: func(w *world) {
		e := w.connect(rdmatest.Options{})
		e.traffic(3)
	}},
	{name: "nothing, with a connection manager", run: func(w *world) {
		x, y := cmtest.Dial(w.t, w.a, w.b, nil, nil)
		synctest.Wait()
		x.Close()
		<-y.Disconnected()
		synctest.Wait()
	}},
	{name: "nothing, with FLUSH and ATOMIC WRITE", run: func(w *world) {
		e := w.flushable(true)
		for range 3 {
			e.flush()
			e.post(verbs.OpAtomicWrite, 8)
			e.x.Done()
		}
	}},
	{name: "50 ms of delay", config: sim.Config{Delay: 50 * time.Millisecond}, run: func(w *world) {
		e := w.connect(rdmatest.Options{Retry: verbs.Retry{Timeout: 18}})
		e.traffic(3)
	}},
	{name: "a packet in the middle is lost", run: disturbed(false, 3, fault.Plan{Lost: true}, verbs.OpRDMAWrite, 40000), want: map[string][]string{"sender": {"LOSS-NAK"}, "receiver": {"LOSS-NAK"}, "both": {"LOSS-NAK", "LOSS-PATH"}}},
	{name: "the same, between cards", standard: true, run: disturbed(false, 3, fault.Plan{Lost: true}, verbs.OpRDMAWrite, 40000), want: map[string][]string{"sender": {"LOSS-NAK"}, "receiver": {"LOSS-NAK"}, "both": {"LOSS-NAK", "LOSS-PATH"}}},
	{name: "the last packet is lost", standard: true, run: disturbed(false, 1, fault.Plan{Lost: true}, verbs.OpRDMAWrite, 1000), want: map[string][]string{"sender": {"LOSS-TIMEOUT"}, "receiver": {}, "both": {"LOSS-PATH", "LOSS-TIMEOUT"}}},
	{name: "an acknowledgement is lost", standard: true, run: disturbed(true, 1, fault.Plan{Lost: true}, verbs.OpRDMAWrite, 1000), want: map[string][]string{"sender": {"LOSS-TIMEOUT"}, "receiver": {"LOSS-ACK"}, "both": {"LOSS-ACK", "LOSS-PATH"}}},
	{name: "a response to a READ is lost", standard: true, run: disturbed(true, 3, fault.Plan{Lost: true}, verbs.OpRDMARead, 40000), want: map[string][]string{"sender": {"LOSS-NAK"}, "receiver": {"LOSS-ACK"}, "both": {"LOSS-ACK", "LOSS-PATH"}}},
	{name: "a packet comes twice", run: func(w *world) {
		e := w.connect(rdmatest.Options{})
		e.traffic(2)
		w.plan(false, 3, fault.Plan{Duplicate: true})
		e.traffic(2)
	}, want: map[string][]string{"sender": {}, "receiver": {"DUP"}, "both": {"DUP"}}},
	{name: "a packet is overtaken", run: disturbed(false, 3, fault.Plan{HoldBehind: 1}, verbs.OpRDMAWrite, 40000), want: map[string][]string{"sender": {}, "receiver": {"REORDER"}, "both": {"REORDER"}}},
	{name: "a packet is damaged", standard: true, run: disturbed(false, 3, fault.Plan{Corrupt: true}, verbs.OpRDMAWrite, 40000), want: map[string][]string{"sender": {"LOSS-NAK"}, "receiver": {"ICRC-BAD", "LOSS-NAK"}, "both": {"ICRC-BAD", "LOSS-NAK"}}},
	{name: "one packet in fifty is lost", config: sim.Config{Loss: 0.02}, standard: true, run: long, want: map[string][]string{"sender": {"LOSS-NAK", "LOSS-TIMEOUT"}, "receiver": {"LOSS-ACK", "LOSS-NAK"}, "both": {"LOSS-ACK", "LOSS-NAK", "LOSS-PATH", "LOSS-TIMEOUT"}}},
	{name: "one packet in fifty is damaged", config: sim.Config{Corrupt: 0.02}, standard: true, run: long, want: map[string][]string{"sender": {"ICRC-BAD", "LOSS-ACK", "LOSS-NAK", "LOSS-TIMEOUT"}, "receiver": {"ICRC-BAD", "LOSS-ACK", "LOSS-NAK"}, "both": {"ICRC-BAD", "LOSS-ACK", "LOSS-NAK", "LOSS-TIMEOUT"}}},
	{name: "one packet in fifty comes twice", config: sim.Config{Duplicate: 0.02}, standard: true, run: long, want: map[string][]string{"": {"DUP"}}},
	{name: "one packet in fifty is overtaken", config: sim.Config{Reorder: 0.02}, standard: true, run: long, want: map[string][]string{"sender": {"LOSS-NAK"}, "receiver": {"LOSS-NAK", "REORDER"}, "both": {"REORDER"}}},
	{name: "1 ms of jitter, in order", config: sim.Config{Delay: time.Millisecond, Jitter: time.Millisecond}, standard: true, run: long, want: map[string][]string{"": {}}},
	{name: "a bottleneck with a small buffer", standard: true, run: func(w *world) {
		e := w.connect(rdmatest.Options{})
		e.traffic(2)
		w.net.SetRoute(w.addrA, w.addrB, w.net.Port(sim.PortConfig{Rate: 1e8, Buffer: 20000}))
		for range 5 {
			e.post(verbs.OpRDMAWrite, regionSize)
			e.x.Done()
		}
	}, want: map[string][]string{"sender": {"LOSS-NAK", "LOSS-TIMEOUT"}, "receiver": {"LOSS-NAK", "LOSS-TIMEOUT"}, "both": {"LOSS-NAK", "LOSS-PATH", "LOSS-TIMEOUT"}}},
	{name: "a bottleneck that marks", standard: true, run: func(w *world) {
		e := w.connect(rdmatest.Options{Path: verbs.Path{TrafficClass: 2}})
		e.traffic(2)
		w.net.SetRoute(w.addrA, w.addrB, w.net.Port(sim.PortConfig{Rate: 1e8, Buffer: 1 << 20, MarkFrom: 10000, MarkTo: 20000, MarkMost: 1}))
		for range 5 {
			e.post(verbs.OpRDMAWrite, regionSize)
			e.x.Done()
		}
	}, want: map[string][]string{"": {"CNP"}}},
	{name: "a slow link", config: sim.Config{Rate: 1e8}, standard: true, run: long},
	{name: "a slow link that marks", config: sim.Config{Rate: 1e8, MarkCEAbove: 10000}, standard: true, run: func(w *world) {
		e := w.connect(rdmatest.Options{Path: verbs.Path{TrafficClass: 2}})
		e.traffic(10)
	}, want: map[string][]string{"": {"CNP"}}},
	{name: "a socket's receive buffer that is too small", config: sim.Config{QueueLen: 4, Delay: 50 * time.Microsecond}, standard: true, run: long, want: map[string][]string{"sender": {"LOSS-TIMEOUT"}, "receiver": {"LOSS-ACK"}, "both": {"LOSS-ACK", "LOSS-PATH"}}},
	{name: "packets are spread over paths of different length", run: func(w *world) {
		e := w.connect(rdmatest.Options{})
		e.traffic(2)
		w.net.SetRoutes(w.addrA, w.addrB, sim.ByPacket, []*sim.Port{w.net.Port(sim.PortConfig{})}, []*sim.Port{w.net.Port(sim.PortConfig{Delay: 20 * time.Microsecond})})
		e.traffic(2)
	}, want: map[string][]string{"sender": {"LOSS-NAK"}, "receiver": {"REORDER"}, "both": {"REORDER"}}},
	{name: "a link that is down for a moment", standard: true, run: func(w *world) {
		e := w.connect(rdmatest.Options{})
		e.traffic(2)
		for n := range uint64(4) {
			w.plan(false, n+1, fault.Plan{Lost: true})
		}
		e.post(verbs.OpRDMAWrite, 8)
		e.x.Done()
		e.traffic(2)
	}, want: map[string][]string{"sender": {"LOSS-TIMEOUT"}, "receiver": {}, "both": {"LOSS-PATH", "LOSS-TIMEOUT"}}},
	{name: "marks of congestion", config: sim.Config{MarkCE: 0.5}, run: func(w *world) {
		e := w.connect(rdmatest.Options{Path: verbs.Path{TrafficClass: 2}})
		e.traffic(3)
	}, want: map[string][]string{"sender": {"CNP"}, "receiver": {"CNP"}, "both": {"CNP"}}},
	{name: "the peer vanishes", run: func(w *world) {
		e := w.connect(rdmatest.Options{})
		e.traffic(2)
		w.net.Partition(w.addrA, w.addrB)
		e.post(verbs.OpRDMAWrite, 8)
		e.x.Next()
	}, want: map[string][]string{"sender": {"RC-DIED"}, "receiver": {}, "both": {"RC-DIED"}}},
	{name: "the peer's queue pair is not there", run: func(w *world) {
		e := w.connect(rdmatest.Options{})
		e.y.QP.Close()
		e.post(verbs.OpRDMAWrite, 8)
		e.x.Next()
	}, want: map[string][]string{"": {"RC-SILENT"}}},
	{name: "a link with a smaller MTU", standard: true, run: func(w *world) {
		e := w.connect(rdmatest.Options{})
		e.post(verbs.OpRDMAWrite, 8)
		e.x.Done()
		w.net.SetRoute(w.addrA, w.addrB, w.net.Port(sim.PortConfig{MTU: 1500}))
		e.post(verbs.OpRDMAWrite, 4096)
		e.x.Next()
	}, want: map[string][]string{"sender": {"MTU-BLACKHOLE"}, "receiver": {"LOSS-ACK"}, "both": {"LOSS-PATH", "MTU-BLACKHOLE"}}},
	{name: "no receive is posted", run: func(w *world) {
		e := w.connect(rdmatest.Options{Retry: verbs.Retry{RNRRetryCount: 2}})
		e.post(verbs.OpSend, 8)
		e.x.Next()
	}, want: map[string][]string{"": {"RNR"}}},
	{name: "a receive comes late", run: func(w *world) {
		e := w.connect(rdmatest.Options{})
		e.post(verbs.OpSend, 8)
		synctest.Wait()
		e.y.Recv(verbs.RecvWR{SGList: []verbs.SGE{e.dst.SGE(0, 8)}})
		e.x.Done()
		e.traffic(1)
	}, want: map[string][]string{"": {"RNR"}}},
	{name: "a wrong rkey", run: func(w *world) {
		e := w.connect(rdmatest.Options{})
		e.traffic(1)
		remote := e.dst.Remote(0)
		remote.RKey ^= 0x100
		e.x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{e.src.SGE(0, 8)}, Remote: remote})
		e.x.Next()
	}, want: map[string][]string{"": {"NAK-ACCESS"}}},
	{name: "a FLUSH that the queue pair does not allow", run: func(w *world) {
		e := w.flushable(false)
		e.x.Send(verbs.SendWR{Op: verbs.OpFlush, Flags: verbs.SendSignaled, Remote: e.dst.Remote(0), Flush: verbs.Flush{Length: 64, Placement: verbs.FlushGlobal}})
		e.x.Next()
	}, want: map[string][]string{"": {"NAK-INVALID"}}},
	{name: "a message longer than the receive", run: func(w *world) {
		e := w.connect(rdmatest.Options{})
		e.y.Recv(verbs.RecvWR{SGList: []verbs.SGE{e.dst.SGE(0, 8)}})
		e.post(verbs.OpSend, 100)
		e.x.Next()
	}, want: map[string][]string{"": {"NAK-INVALID"}}},
	{name: "a region that allows no WRITE", run: func(w *world) {
		x, y := rdmatest.Connect(w.t, w.a, w.b, rdmatest.Options{})
		e := ends{x, y, x.MR(regionSize), nil}
		mr, err := y.PD.AllocMR(regionSize, verbs.AccessLocalWrite|verbs.AccessRemoteRead)
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() { mr.Close() })
		e.dst = mr
		e.post(verbs.OpRDMARead, 8)
		e.x.Done()
		e.post(verbs.OpRDMAWrite, 8)
		e.x.Next()
	}, want: map[string][]string{"": {"NAK-ACCESS"}}},
	{name: "nobody listens", run: func(w *world) {
		l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{w.b}}).Listen(netip.AddrPortFrom(w.addrB, 0)) // on another port
		if err != nil {
			w.t.Fatal(err)
		}
		defer l.Close()
		if _, err := (&rdmacm.Dialer{Devices: []*verbs.Device{w.a}}).Dial(context.Background(), netip.AddrPortFrom(w.addrB, 7471), nil); err == nil {
			w.t.Error("a connection to nobody, want an error")
		}
	}, want: map[string][]string{"": {"CM-REJ-8"}}},
	{name: "the program refuses", run: func(w *world) {
		ctx := context.Background()
		l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{w.b}}).Listen(netip.AddrPortFrom(w.addrB, 0))
		if err != nil {
			w.t.Fatal(err)
		}
		defer l.Close()
		go func() {
			if r, err := l.Accept(ctx); err == nil {
				r.Reject([]byte("full"))
			}
		}()
		if _, err := (&rdmacm.Dialer{Devices: []*verbs.Device{w.a}}).Dial(ctx, l.Addr(), nil); err == nil {
			w.t.Error("a connection that was refused, want an error")
		}
	}, want: map[string][]string{"": {"CM-REJ-28"}}},
	{name: "the host is not there", run: func(w *world) {
		w.net.Partition(w.addrA, w.addrB)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := (&rdmacm.Dialer{Devices: []*verbs.Device{w.a}}).Dial(ctx, netip.AddrPortFrom(w.addrB, 7471), nil); err == nil {
			w.t.Error("a connection to nobody, want an error")
		}
	}, want: map[string][]string{"sender": {"CM-NOANSWER"}, "receiver": {}, "both": {"CM-NOANSWER"}}},
}

// idsOf returns the IDs of findings, each once.
func idsOf(list []*diagnose.Finding) []string {
	ids := map[string]bool{}
	for _, f := range list {
		ids[f.ID] = true
	}
	return slices.Sorted(maps.Keys(ids))
}

// diagnoseBytes diagnoses a capture.
func diagnoseBytes(t *testing.T, file []byte) *diagnose.Report {
	t.Helper()
	r, err := diagnose.File(bytes.NewReader(file), diagnose.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Each fault gives exactly its findings, wherever the capture was made. docs/DIAGNOSE.md has the matrix.
func TestMatrix(t *testing.T) {
	var rows strings.Builder
	rows.WriteString("| what happens | captured at the sender | at the receiver | at both |\n|---|---|---|---|\n")
	for _, s := range scenarios {
		rows.WriteString("| " + s.name)
		t.Run(s.name, func(t *testing.T) {
			files := map[string]*bytes.Buffer{}
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, s.config, s.standard)
				s.run(w)
				synctest.Wait()
				for _, out := range w.writers {
					if err := out.Close(); err != nil {
						t.Error(err)
					}
				}
				files = w.files
			})
			for _, p := range points {
				r := diagnoseBytes(t, files[p].Bytes())
				want, ok := s.want[p]
				if !ok {
					want = s.want[""]
				}
				got := idsOf(r.Findings)
				if !slices.Equal(got, want) {
					var text strings.Builder
					r.Print(&text)
					t.Errorf("captured at %s: %v, want %v\n%s", p, got, want, &text)
				}
				rows.WriteString(" | " + cmp.Or(strings.Join(got, ", "), "nothing"))
			}
		})
		rows.WriteString(" |\n")
	}
	if t.Failed() {
		return
	}
	compareDocument(t, "matrix", rows.String())
}

// compareDocument compares a part of docs/DIAGNOSE.md, between two marks, with the text that the code makes, or writes it.
func compareDocument(t *testing.T, part, want string) {
	t.Helper()
	const name = "../../docs/DIAGNOSE.md"
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- "+part+" -->\n", "<!-- end of "+part+" -->\n"
	front, rest, ok := strings.Cut(string(b), begin)
	got, back, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no part %q", name, part)
	}
	if *update {
		if err := os.WriteFile(name, []byte(front+begin+want+end+back), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got != want {
		t.Errorf("%s: the part %q is not what the code says: go test ./internal/diagnose -update", name, part)
	}
}

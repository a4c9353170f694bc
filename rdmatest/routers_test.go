package rdmatest_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
	"github.com/adverb-rdma/adverb/verbs/verbstest"
)

// The prefixes of the subnets of apart.
const (
	prefixA = 0xfec0_0000_0000_0001
	prefixB = 0xfec0_0000_0000_0002
)

// apart makes a device in each of two subnets, between which a router is.
func apart(t testing.TB, c rdmatest.Config) (net *rdmatest.Network, r *rdmatest.Router, a, b *verbs.Device) {
	t.Helper()
	c.InfiniBand = true
	net = rdmatest.New(t, c)
	left, right := net.Subnet(prefixA), net.Subnet(prefixB)
	r = net.Router(left.Switch("left"), right.Switch("right"))
	return net, r, left.Device(), right.Device()
}

func TestConformanceRouter(t *testing.T) {
	verbstest.Run(t, verbstest.Config{
		Open: func(t testing.TB) (a, b *verbs.Device) {
			_, _, a, b = apart(t, rdmatest.Config{})
			return a, b
		},
		Require: required() &^ verbstest.Multicast, // groups end at a router
	})
}

func TestRouterPaths(t *testing.T) {
	_, r, a, b := apart(t, rdmatest.Config{})
	for d, want := range map[*verbs.Device]string{a: "fec0::1:", b: "fec0::2:"} {
		if g, err := d.GID(1, 0); err != nil || !strings.HasPrefix(g.GID.String(), want) {
			t.Errorf("GID %v, %v; want the subnet's prefix %s", g.GID, err, want)
		}
	}
	x, y := rdmatest.Connect(t, a, b)
	if !copies(x, y, 50000) {
		t.Error("the bytes do not arrive")
	}
	attr, _, err := x.QP.Query()
	if pb, _ := b.QueryPort(1); err != nil || !attr.AH.IsGlobal() || attr.AH.DLID == pb.LID {
		t.Errorf("path %+v, %v; want one with a GRH, by the router's LID", attr.AH, err)
	}
	u, v := rdmatest.Datagrams(t, a, b)
	dst := v.MR(200)
	v.Recv(verbs.RecvWR{SGList: []verbs.SGE{dst.SGE(0, 200)}})
	u.Send(u.To(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled}))
	u.Done()
	if wc := v.Done(); wc.Flags&verbs.WCFlagGRH == 0 || dst.Bytes()[7] != 63 {
		t.Errorf("a datagram comes with flags %v and hop limit %d; want a GRH, and one less than the 64 that were sent", wc.Flags, dst.Bytes()[7])
	}

	// A hop limit of 1 ends at the router.
	peer := verbs.Peer{QPN: y.QP.QPN(), GID: attr.AH.DGID, LID: attr.AH.DLID}
	for limit, c := range map[uint8]struct {
		retry verbs.Retry
		want  verbs.WCStatus
	}{
		1: {verbs.Retry{Timeout: 8, RetryCount: 1, MaxRDAtomic: 1}, verbs.WCRetryExceeded},
		2: {verbs.DefaultRetry, verbs.WCSuccess}, // which a busy machine has time for
	} {
		e, z := rdmatest.Connect(t, a, b)
		if err := e.QP.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState); err != nil {
			t.Fatal(err)
		}
		peer.QPN, peer.PSN = z.QP.QPN(), 0
		for _, err := range []error{
			e.QP.Init(1, rdmatest.Access), e.QP.RTR(peer, verbs.Path{HopLimit: limit}),
			e.QP.RTS(1<<24-40, c.retry),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		e.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: z.MR(8).Remote(0)})
		if wc := e.Next(); wc.Status != c.want {
			t.Errorf("a WRITE with hop limit %d ends with %v, want %v", limit, wc.Status, c.want)
		}
	}

	r.Fail()
	x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: y.MR(8).Remote(0)})
	if wc := x.Next(); wc.Status != verbs.WCRetryExceeded {
		t.Errorf("when the router has failed, a WRITE ends with %v, want RETRY_EXC_ERR", wc.Status)
	}
	r.Repair()
	x, y = rdmatest.Connect(t, a, b)
	if !copies(x, y, 50000) {
		t.Error("with the router again the bytes do not arrive")
	}
}

// Packets have a GRH between subnets, and none within one. tshark finds no fault with them.
func TestRouterCapture(t *testing.T) {
	tshark, f := captureFile(t)
	net := rdmatest.New(t, rdmatest.InfiniBand())
	net.Capture(f)
	left, right := net.Subnet(prefixA), net.Subnet(prefixB)
	net.Router(left.Switch("left"), right.Switch("right"))
	a, b, c := left.Device(), left.Device(), right.Device()
	near, far := copyOne(t, a, b), copyOne(t, a, c)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tshark, "-r", f.Name(), "-T", "fields", "-e", "_ws.expert.message", "-e", "infiniband.bth.destqp", "-e", "infiniband.lrh.slid",
		"-e", "infiniband.lrh.dlid", "-e", "infiniband.lrh.lnh", "-e", "infiniband.grh.hoplmt", "-e", "infiniband.grh.dgid", "-e", "_ws.col.Info").Output()
	if err != nil {
		t.Fatal(err)
	}
	var hops []string
	for _, line := range strings.Split(strings.Trim(string(out), "\n"), "\n") {
		v := strings.Split(line, "\t")
		if v[0] != "" {
			t.Errorf("tshark warns: %s", line)
		}
		if v[1] == number(near) && v[6] != "" {
			t.Errorf("within the subnet a packet has a GRH: %s", line)
		}
		if v[1] == number(far) {
			hops = append(hops, v[5])
			if v[6] == "" || v[2] == v[3] {
				t.Errorf("between subnets a packet has no GRH: %s", line)
			}
		}
	}
	if got := strings.Join(hops, " "); got != "64 64 63 63" {
		t.Errorf("hop limits of the packet on the four cables of its way: %s; want 64 64 63 63", got)
	}
	if !strings.Contains(string(out), "PathRecord") {
		t.Error("nobody asks for a path")
	}
}

// copyOne writes a packet's worth of bytes from a to b, and returns the QPN of b's QP.
func copyOne(t *testing.T, a, b *verbs.Device) verbs.QPN {
	t.Helper()
	x, y := rdmatest.Connect(t, a, b)
	if !copies(x, y, 100) {
		t.Error("the bytes do not arrive")
	}
	return y.QP.QPN()
}

// number is a QPN as tshark prints it.
func number(n verbs.QPN) string { return fmt.Sprintf("0x%06x", uint32(n)) }

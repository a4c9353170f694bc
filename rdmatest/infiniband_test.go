package rdmatest_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
	"github.com/adverb-rdma/adverb/verbs/verbstest"
)

func TestConformanceInfiniBand(t *testing.T) {
	for name, lmc := range map[string]uint8{"one LID": 0, "four LIDs": 2} {
		t.Run(name, func(t *testing.T) {
			verbstest.Run(t, verbstest.Config{
				Open: func(t testing.TB) (a, b *verbs.Device) {
					net := rdmatest.New(t, rdmatest.Config{InfiniBand: true, LMC: lmc})
					return net.Device(), net.Device()
				},
				MLID:    0xc005,
				Require: required(),
			})
		})
	}
}

// spines is two switches with a device each, between which two others are.
func spines(t *testing.T, c rdmatest.Config) (net *rdmatest.Network, between []*rdmatest.Switch, a, b *verbs.Device) {
	t.Helper()
	c.InfiniBand = true
	net = rdmatest.New(t, c)
	left, right := net.Switch("left"), net.Switch("right")
	for _, name := range []string{"spine0", "spine1"} {
		s := net.Switch(name)
		left.Connect(s)
		right.Connect(s)
		between = append(between, s)
	}
	return net, between, left.Device(), right.Device()
}

// copies writes n bytes from x to y, and reports whether they have come.
func copies(x, y *rdmatest.Endpoint, n int) bool {
	src, dst := x.MR(n), y.MR(n)
	for i := range n {
		src.Bytes()[i] = byte(i * i >> 3)
	}
	x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, n)}, Remote: dst.Remote(0)})
	x.Done()
	y.QP.Query() // for the race detector
	return bytes.Equal(src.Bytes(), dst.Bytes())
}

func TestInfiniBandPaths(t *testing.T) {
	_, _, a, b := spines(t, rdmatest.Config{LMC: 1})
	for _, o := range []rdmatest.Options{{}, {GRH: true}, {Path: verbs.Path{SL: 5}}, {Path: verbs.Path{SrcPathBits: 1}}, {Path: verbs.Path{MTU: verbs.MTU256}}} {
		x, y := rdmatest.Connect(t, a, b, o)
		if !copies(x, y, 20000) {
			t.Errorf("%+v: the bytes do not arrive", o)
		}
	}
	p, err := b.QueryPort(1)
	if err != nil || p.LMC != 1 || p.LID&1 != 0 || p.LinkLayer != verbs.LinkLayerInfiniBand {
		t.Errorf("port %+v, %v; want two LIDs", p, err)
	}
}

// What a UD completion tells of a datagram's way, with a GRH and without.
func TestInfiniBandDatagrams(t *testing.T) {
	_, _, a, b := spines(t, rdmatest.Config{LMC: 1})
	pa, _ := a.QueryPort(1)
	for _, grh := range []bool{false, true} {
		x, y := rdmatest.Datagrams(t, a, b, rdmatest.Options{GRH: grh, Path: verbs.Path{SL: 3, SrcPathBits: 1}})
		src, dst := x.MR(100), y.MR(200)
		y.Recv(verbs.RecvWR{SGList: []verbs.SGE{dst.SGE(0, 200)}})
		x.Send(x.To(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 100)}}))
		x.Done()
		wc := y.Done()
		if wc.SLID != pa.LID+1 || wc.SL != 3 || wc.DLIDPathBits != 0 || wc.ByteLen != 140 || (wc.Flags&verbs.WCFlagGRH != 0) != grh {
			t.Errorf("GRH %v: %+v, want from LID %d by service level 3", grh, wc, pa.LID+1)
		}
		back, err := b.AHAttrFromWC(1, &wc, dst.Bytes())
		if err != nil || back.DLID != wc.SLID || back.SL != 3 || back.IsGlobal() != grh {
			t.Fatalf("the way back: %+v, %v", back, err)
		}
		ah, err := y.PD.CreateAH(back)
		if err != nil {
			t.Fatal(err)
		}
		x.Recv(verbs.RecvWR{SGList: []verbs.SGE{src.SGE(0, 100)}})
		y.Send(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{dst.SGE(0, 10)}, AH: ah, RemoteQPN: wc.SrcQPN, RemoteQKey: rdmatest.QKey})
		y.Done()
		if wc := x.Done(); wc.DLIDPathBits != 1 {
			t.Errorf("GRH %v: path bits %d of the answer's destination, want 1", grh, wc.DLIDPathBits)
		}
	}
}

// event returns the next events of a device, up to the one that is wanted.
func event(t *testing.T, d *verbs.Device, want verbs.EventType) (before []verbs.EventType) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), rdmatest.Patience)
	defer cancel()
	for {
		e, err := d.NextEvent(ctx)
		if err != nil {
			t.Fatalf("before %v: %v", want, err)
		}
		if e.Type == want {
			return before
		}
		before = append(before, e.Type)
	}
}

func TestInfiniBandFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, between, a, b := spines(t, rdmatest.Config{})
		x, y := rdmatest.Connect(t, a, b)
		pa, _ := a.QueryPort(1)
		pb, _ := b.QueryPort(1)
		if pa.SMLID != pa.LID || pa.LID != 1 || pb.SMLID != 1 || pa.PortCapFlags&2 == 0 || pb.PortCapFlags&2 != 0 {
			t.Errorf("LIDs %d and %d, the manager at %d and %d; want it at the first device", pa.LID, pb.LID, pa.SMLID, pb.SMLID)
		}
		for i := range between {
			between[i].Fail()
			if !copies(x, y, 50000) {
				t.Errorf("without %d of the switches between the bytes do not arrive", i)
			}
			between[i].Repair()
		}

		net.SetCable(b, false)
		if before := event(t, b, verbs.EventPortErr); len(before) > 0 {
			t.Errorf("events %v before PORT_ERR", before)
		}
		if p, _ := b.QueryPort(1); p.State != verbs.PortDown {
			t.Errorf("without a cable the port is in %v", p.State)
		}
		src, dst := x.MR(8), y.MR(8)
		x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 8)}, Remote: dst.Remote(0)})
		time.Sleep(100 * time.Millisecond) // of the bubble's clock: time for repeats that find no way
		net.SetCable(b, true)
		event(t, b, verbs.EventPortActive)
		x.Done()
		if p, _ := b.QueryPort(1); p.State != verbs.PortActive || p.LID != pb.LID {
			t.Errorf("with a cable again: %+v, want LID %d", p, pb.LID)
		}

		net.StartManager(b, 0) // it stands by
		synctest.Wait()
		if p, _ := a.QueryPort(1); p.SMLID != 1 {
			t.Errorf("a manager that stands by serves at LID %d", p.SMLID)
		}
		net.StopManager(a)
		if before := event(t, a, verbs.EventClientReregister); !slices.Contains(before, verbs.EventSMChange) || slices.Contains(before, verbs.EventLIDChange) {
			t.Errorf("at the handover events %v, want SM_CHANGE among them, and LIDs as they were", before)
		}
		if p, _ := a.QueryPort(1); p.SMLID != pb.LID {
			t.Errorf("after the handover the manager is at LID %d, want %d", p.SMLID, pb.LID)
		}
		if !copies(x, y, 50000) {
			t.Error("after the handover the bytes do not arrive")
		}
	})
}

func TestInfiniBandLoss(t *testing.T) {
	_, _, a, b := spines(t, rdmatest.Config{Seed: 3, Loss: .01, Corrupt: .01})
	x, y := rdmatest.Connect(t, a, b)
	for range 10 {
		if !copies(x, y, 100000) {
			t.Error("the bytes arrive damaged")
		}
	}
}

func TestInfiniBandPartitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pkey = 0x8001
		net, _, a, b := spines(t, rdmatest.Config{})
		net.SetPartition(pkey, a, b)
		event(t, a, verbs.EventPKeyChange)
		event(t, b, verbs.EventPKeyChange)
		if k, err := b.PKey(1, 1); err != nil || k != pkey {
			t.Fatalf("P_Key 1 is %v, %v", k, err)
		}
		x, y := rdmatest.Connect(t, a, b)
		reset := func(e *rdmatest.Endpoint) {
			if err := e.QP.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState); err != nil {
				t.Fatal(err)
			}
		}
		reset(x)
		reset(y)
		connect := func(e, to *rdmatest.Endpoint, index int) {
			port, _ := to.Device.QueryPort(1)
			err := e.QP.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: 1, PKeyIndex: index, Access: rdmatest.Access},
				verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskAccessFlags)
			if err == nil {
				err = e.QP.RTR(verbs.Peer{QPN: to.QP.QPN(), LID: port.LID}, verbs.Path{})
			}
			if err == nil {
				err = e.QP.RTS(0, verbs.DefaultRetry)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		connect(x, y, 1)
		connect(y, x, 1)
		if !copies(x, y, 5000) {
			t.Error("within a partition the bytes do not arrive")
		}
		reset(y)
		connect(y, x, 0)
		src, dst := x.MR(8), y.MR(8)
		x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 8)}, Remote: dst.Remote(0)})
		if wc := x.Next(); wc.Status != verbs.WCRetryExceeded {
			t.Errorf("between partitions a WRITE ends with %v, want RETRY_EXC_ERR", wc.Status)
		}
		if p, _ := b.QueryPort(1); p.BadPKeyCntr == 0 {
			t.Error("bad_pkey_cntr does not count")
		}
	})
}

// A UD QP is of its partition from the beginning, also if it never sends.
func TestInfiniBandPartitionsUD(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, _, a, b := spines(t, rdmatest.Config{})
		net.SetPartition(0x8001, a, b)
		event(t, a, verbs.EventPKeyChange)
		event(t, b, verbs.EventPKeyChange)
		for _, c := range []struct{ from, to int }{{1, 1}, {0, 1}, {1, 0}, {0, 0}} {
			x, y := rdmatest.Datagrams(t, a, b)
			for e, index := range map[*rdmatest.Endpoint]int{x: c.from, y: c.to} {
				err := e.QP.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState)
				if err == nil {
					err = e.QP.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: 1, PKeyIndex: index, QKey: rdmatest.QKey},
						verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey)
				}
				if err == nil {
					err = e.QP.Modify(&verbs.QPAttr{State: verbs.QPStateRTR}, verbs.MaskState)
				}
				if err == nil {
					err = e.QP.RTS(0, verbs.Retry{})
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			before, _ := b.QueryPort(1)
			src, dst := x.MR(8), y.MR(48)
			y.Recv(verbs.RecvWR{SGList: []verbs.SGE{dst.SGE(0, 48)}})
			x.Send(x.To(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 8)}}))
			x.Done()
			synctest.Wait()
			var wcs [1]verbs.WC
			n, err := y.CQ.Poll(wcs[:])
			after, _ := b.QueryPort(1)
			if dropped := after.BadPKeyCntr - before.BadPKeyCntr; err != nil || (n == 1) != (c.from == c.to) || (dropped == 1) != (c.from != c.to) {
				t.Errorf("P_Key index %d to %d: %d datagrams received, %v, and bad_pkey_cntr counts %d", c.from, c.to, n, err, dropped)
			}
		}
	})
}

// captureFile returns tshark and a file for it, or skips the test where tshark is not installed.
func captureFile(t *testing.T) (tshark string, f *os.File) {
	t.Helper()
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	if f, err = os.Create(filepath.Join(t.TempDir(), "capture")); err != nil {
		t.Fatal(err)
	}
	return tshark, f
}

// A capture has all that happens, and tshark finds no fault with it.
func TestInfiniBandCapture(t *testing.T) {
	tshark, f := captureFile(t)
	net := rdmatest.New(t, rdmatest.InfiniBand())
	net.Capture(f)
	a, b := net.Device(), net.Device()
	for _, grh := range []bool{false, true} {
		x, y := rdmatest.Connect(t, a, b, rdmatest.Options{GRH: grh})
		copies(x, y, 10000)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tshark, "-r", f.Name(), "-T", "fields", "-e", "_ws.expert.message", "-e", "_ws.col.Info", "-e", "infiniband.lrh.dlid", "-e", "infiniband.grh.dgid").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.Trim(string(out), "\n"), "\n") {
		if !strings.HasPrefix(line, "\t") {
			t.Errorf("tshark warns: %s", line)
		}
	}
	for _, want := range []string{"(NodeInfo)", "(PortInfo)", "RC RDMA Write First", "RC Acknowledge", "fe80::200:0:0:"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("tshark finds no %s", want)
		}
	}
}

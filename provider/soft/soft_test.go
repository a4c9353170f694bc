package soft_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"

	"github.com/adverb-rdma/adverb/verbs"
)

// loopAddr returns an address of 127.0.0.0/8 that another test process is not likely to use.
func loopAddr(i int) string {
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{127, 128 | byte(pid>>8)&127, byte(pid), byte(i)}).String()
}

// loopback returns the name of the device of the loopback interface.
func loopback(t testing.TB) string {
	t.Helper()
	ifis, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range ifis {
		if addrs, _ := i.Addrs(); i.Flags&net.FlagLoopback != 0 && len(addrs) > 0 {
			return "soft_" + i.Name
		}
	}
	t.Skip("no loopback interface to test on")
	return ""
}

func TestDevices(t *testing.T) {
	lo := loopback(t)
	all, err := verbs.Devices()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(d verbs.DeviceInfo) bool { return d.Name == lo })
	if i != len(all)-1 {
		t.Errorf("%s is number %d of %d, want it last", lo, i, len(all))
	}
	for _, d := range all {
		if d.Provider != "soft" || d.Name != "soft_"+d.Netdev || d.NodeGUID == (verbs.GUID{}) || d.NodeType != "CA" {
			t.Errorf("device %+v, want provider soft, the name soft_%s, a GUID and node type CA", d, d.Netdev)
		}
		dev, err := verbs.Open(d.Name)
		if err != nil {
			t.Error(err)
			continue
		}
		if got := dev.Info(); got.Name != d.Name || got.NodeGUID != d.NodeGUID || got.Netdev != d.Netdev {
			t.Errorf("the device opened says %+v, want %+v as listed", got, d)
		}
		gids, err := dev.GIDs(1)
		if err != nil || len(gids) == 0 {
			t.Errorf("%s: GIDs %v, %v; want at least one", d.Name, gids, err)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestOpenAddress(t *testing.T) {
	name := loopback(t) + "@" + loopAddr(1)
	dev, err := verbs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	gids, err := dev.GIDs(1)
	if err != nil || len(gids) != 1 || gids[0].GID.Addr().String() != loopAddr(1) {
		t.Errorf("GIDs %v, %v; want %s alone", gids, err, loopAddr(1))
	}
	if dev.Name() != name {
		t.Errorf("name %s, want %s", dev.Name(), name)
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}

func TestOpenErrors(t *testing.T) {
	lo := loopback(t)
	for _, tt := range []struct {
		name string
		is   error
		text string
	}{
		{"", verbs.ErrNotFound, "no such device; there are"},
		{"mlx5_0", verbs.ErrNotFound, lo + " (soft)"},
		{"soft_", verbs.ErrNotFound, "no such device"},
		{"soft_nosuch0", verbs.ErrNotFound, "no such device"},
		{"soft_nosuch0@127.0.0.1", verbs.ErrNotFound, "no such device"},
		{lo + "@", verbs.ErrInvalid, "the address after @ does not parse"},
		{lo + "@here", verbs.ErrInvalid, "the address after @ does not parse"},
		{lo + "@127.0.0.1:4791", verbs.ErrInvalid, "the address after @ does not parse"},
		{lo + "@203.0.113.77", verbs.ErrInvalid, "does not have this address"},
		{lo + "@2001:db8::77", verbs.ErrInvalid, "does not have this address"},
	} {
		dev, err := verbs.Open(tt.name)
		if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("open %q: %v, %v; want %q, %v", tt.name, dev, err, tt.text, tt.is)
		}
	}
}

// envTalk makes the test binary a program that sends a message to itself. A process of its own is
// needed, because a process reads the variables under test only once.
const envTalk = "ADVERB_TEST_TALK"

func TestMain(m *testing.M) {
	if name := os.Getenv(envTalk); name != "" {
		talk(name)
		return
	}
	os.Exit(m.Run())
}

// talk sends a message through a device to the device itself.
func talk(name string) {
	dev := must(verbs.Open(name))
	pd, cq, gid := must(dev.AllocPD()), must(dev.CreateCQ(8)), must(dev.GID(1, 0)).GID
	var qps [2]*verbs.QP
	for i := range qps {
		qps[i] = must(pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxInlineData: 64}}))
		check(qps[i].Init(1, 0))
	}
	for i, qp := range qps {
		check(qp.RTR(verbs.Peer{QPN: qps[1-i].QPN(), GID: gid}, verbs.Path{}))
		check(qp.RTS(0, verbs.DefaultRetry))
	}
	in := must(pd.AllocMR(64, verbs.AccessLocalWrite))
	must(qps[1].PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{in.SGE(0, 64)}}}))
	must(qps[0].PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendInline, InlineData: []byte(message)}}))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var wcs [1]verbs.WC
	for range 2 {
		must(cq.Wait(ctx, wcs[:]))
		check(wcs[0].Err())
	}
	for _, qp := range qps {
		check(qp.Close())
	}
	check(in.Close())
	check(cq.Close())
	check(pd.Close())
	check(dev.Close())
}

const message = "a message to be found in the capture"

// runTalk runs talk in a process with more environment variables, and returns its standard error.
func runTalk(t *testing.T, addr string, env ...string) (stderr string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), append(env, envTalk+"="+loopback(t)+"@"+addr)...)
	var out bytes.Buffer
	cmd.Stderr = &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	return out.String()
}

func TestTraceVariable(t *testing.T) {
	if got := runTalk(t, loopAddr(2), "ADVERB_TRACE=1"); !strings.Contains(got, "RC_SEND_ONLY") && !strings.Contains(got, "SEND") {
		t.Errorf("the trace, want a SEND in it:\n%s", got)
	} else if n := strings.Count(got, "\n"); n != 4 { // a SEND and its ACK, both out and in
		t.Errorf("%d lines, want 4:\n%s", n, got)
	}
	for _, off := range []string{"ADVERB_TRACE=0", "ADVERB_TRACE="} {
		if got := runTalk(t, loopAddr(2), off); got != "" {
			t.Errorf("%s: %q is printed, want nothing", off, got)
		}
	}
}

func TestPCAPVariable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "packets.pcapng")
	runTalk(t, loopAddr(3), "ADVERB_PCAP="+file)
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	packets, found := 0, 0
	for {
		b, _, err := r.ReadPacketData()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		packets++
		if len(b) < 28 || b[0] != 0x45 || binary.BigEndian.Uint16(b[22:]) != 4791 {
			t.Errorf("packet %d is %x, want IPv4 to port 4791", packets, b)
		}
		if bytes.Contains(b, []byte(message)) {
			found++
		}
	}
	if packets != 4 || found != 2 { // a SEND and its ACK, both out and in
		t.Errorf("%d packets, %d with the message; want 4 and 2", packets, found)
	}
}

// If the file cannot be made, Open returns an error that names the variable.
func TestPCAPVariableBad(t *testing.T) {
	t.Setenv("ADVERB_PCAP", filepath.Join(t.TempDir(), "no", "such", "directory"))
	if dev, err := verbs.Open(loopback(t)); err == nil || !strings.Contains(err.Error(), "ADVERB_PCAP") {
		t.Errorf("open with a capture that cannot be: %v, %v; want an error that names ADVERB_PCAP", dev, err)
	}
}

// TestRoutingByEnvironment: ADVERB_ROUTING is taken, or refused with the values that it may have.
func TestRoutingByEnvironment(t *testing.T) {
	byEnvironment(t, "ADVERB_ROUTING", "ADVERB_ROUTING",
		map[string]bool{"": true, "send,accept": true, "accept,mark=0x20,patience=3ms": true, "paths=4": true, "paths=9": false, "mark=0x80": false, "spray": false})
}

// TestCongestionByEnvironment: ADVERB_CONGESTION is taken, or refused with the values that there are.
func TestCongestionByEnvironment(t *testing.T) {
	byEnvironment(t, "ADVERB_CONGESTION", "window, dcqcn and delay",
		map[string]bool{"": true, "window": true, "dcqcn": true, "delay": true, "cubic": false})
}

// byEnvironment opens devices with values of a variable. Those that are false must be refused by an error with a text.
func byEnvironment(t *testing.T, name, text string, values map[string]bool) {
	t.Helper()
	for value, ok := range values {
		t.Setenv(name, value)
		dev, err := verbs.Open(loopback(t))
		if ok != (err == nil) || !ok && !strings.Contains(err.Error(), text) {
			t.Errorf("%s=%q: %v, want it taken: %v; else an error with %q", name, value, err, ok, text)
		}
		if err == nil {
			dev.Close()
		}
	}
}

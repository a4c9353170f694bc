//go:build linux && (amd64 || arm64)

package native

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/internal/ibv"
	"github.com/adverb-rdma/adverb/verbs"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		check(t, err)
		return v
	}
}

// pair is two QPs of a device that are connected to each other by RoCE, with a PD, a CQ and memory for both.
type pair struct {
	dev  *verbs.Device
	pd   *verbs.PD
	cq   *verbs.CQ
	a, b *verbs.QP
	mr   *verbs.MR
}

const pairDepth = 64

func newPair(t testing.TB, f *fakeLibrary, name string) *pair {
	t.Helper()
	p := &pair{dev: f.device(t, name)}
	p.pd = must(p.dev.AllocPD())(t)
	p.cq = must(p.dev.CreateCQ(4 * pairDepth))(t)
	p.mr = must(p.pd.AllocMR(1<<12, flushable))(t)
	p.a, p.b = p.qp(t), p.qp(t)
	p.connect(t)
	t.Cleanup(func() {
		for _, c := range []interface{ Close() error }{p.a, p.b, p.mr, p.cq, p.pd, p.dev} {
			check(t, c.Close())
		}
	})
	return p
}

const everything = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

const flushable = everything | verbs.AccessFlushGlobal | verbs.AccessFlushPersistent

func (p *pair) qp(t testing.TB) *verbs.QP {
	t.Helper()
	return must(p.pd.CreateQP(verbs.QPInitAttr{SendCQ: p.cq, RecvCQ: p.cq, Cap: verbs.QPCap{
		MaxSendWR: pairDepth, MaxRecvWR: pairDepth, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64,
	}}))(t)
}

func (p *pair) connect(t testing.TB) {
	t.Helper()
	gid := must(p.dev.GID(rocePort, rocev2))(t).GID
	for _, q := range []*verbs.QP{p.a, p.b} {
		check(t, q.Init(rocePort, flushable))
	}
	for q, peer := range map[*verbs.QP]*verbs.QP{p.a: p.b, p.b: p.a} {
		check(t, q.RTR(verbs.Peer{QPN: peer.QPN(), GID: gid}, verbs.Path{SGIDIndex: rocev2}))
		check(t, q.RTS(0, verbs.DefaultRetry))
	}
}

// write is a signaled WRITE from the first bytes of the region to its second half.
func (p *pair) write(id uint64) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{p.mr.SGE(0, 8)}, Remote: p.mr.Remote(1 << 11)}
}

// wantErr wants an error of a kind, whose text has all the parts.
func wantErr(t testing.TB, what string, err, kind error, parts ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%s: got error %v, want %v", what, err, kind)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s: got error %q, want one with %q", what, err, part)
		}
	}
}

// TestNoDevices: without a device of the kernel's there is no device, no error and no library. A device without the library,
// or without its driver, is an error with the remedy.
func TestNoDevices(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	p := newProvider("libadverb-nowhere.so.1", nowhere)
	if infos, err := p.Devices(); len(infos) > 0 || err != nil {
		t.Errorf("no device of the kernel's: got %v, %v", infos, err)
	}
	_, err := p.Open("mlx5_0")
	wantErr(t, "open", err, verbs.ErrNotFound)
	p.kernel = func() []kernelDevice { return []kernelDevice{{"mlx5_0", "uverbs0"}, {"mlx5_1", "uverbs1"}} }
	_, err = p.Devices()
	wantErr(t, "no library", err, ibv.ErrNoLibrary, "the kernel has RDMA devices (mlx5_0, mlx5_1)", "install libibverbs1 and ibverbs-providers (Debian")
	_, err = p.Open("mlx5_0")
	wantErr(t, "open without library", err, ibv.ErrNoLibrary, "install libibverbs1")
	_, err = p.Open("mlx5_2")
	wantErr(t, "open what the kernel has not", err, verbs.ErrNotFound)

	f := fake(t)
	nodes := t.TempDir()
	check(t, os.WriteFile(filepath.Join(nodes, "uverbs2"), nil, 0o600))
	p = &provider{load: f.load, nodes: nodes, kernel: func() []kernelDevice {
		return []kernelDevice{{fakeName, "uverbs0"}, {quickName, "uverbs1"}, {"mlx5_0", "uverbs2"}}
	}}
	infos, err := p.Devices()
	if len(infos) != 2 || err == nil || !strings.Contains(err.Error(), "no driver for mlx5_0: install ibverbs-providers") {
		t.Errorf("a device without a driver: got %v, %v", infos, err)
	}
	if _, err = p.Open("mlx5_0"); err == nil || !strings.Contains(err.Error(), "has no driver") {
		t.Errorf("open a device without a driver: %v", err)
	}
	f.fail("ibv_get_device_list", int32(syscall.ENOMEM))
	if _, err = p.Open(fakeName); !errors.Is(err, syscall.ENOMEM) || strings.Contains(err.Error(), "driver") {
		t.Errorf("open where the library cannot list devices: %v", err)
	}
}

// TestNoNode: a device without its file in /dev/infiniband, as in a container, is an error that names the file, and not that there
// is no such device. libibverbs lists such a device and cannot open it, or leaves it out.
func TestNoNode(t *testing.T) {
	f := fake(t)
	nodes := t.TempDir()
	node := filepath.Join(nodes, "uverbs0")
	p := &provider{load: f.load, nodes: nodes, kernel: func() []kernelDevice {
		return []kernelDevice{{fakeName, "uverbs0"}, {quickName, "uverbs1"}, {"mlx5_0", "uverbs2"}, {"mlx5_1", "uverbs3"}}
	}}
	open := func(what string, errno syscall.Errno, parts ...string) {
		t.Helper()
		f.fail("ibv_open_device", int32(errno))
		_, err := p.Open(fakeName)
		wantErr(t, what, err, errno, parts...)
		if errors.Is(err, verbs.ErrNotFound) {
			t.Errorf("%s: %v is ErrNotFound, by which verbs.Open goes on to other providers", what, err)
		}
	}
	const remedy = "--device /dev/infiniband"
	for _, errno := range []syscall.Errno{syscall.ENOENT, syscall.ENODEV, syscall.ENXIO} {
		open("open without its file", errno, "ibv_open_device", node+" is not there", remedy)
	}
	_, err := p.Open("mlx5_0")
	if err == nil || !strings.Contains(err.Error(), "uverbs2 is not there") || !strings.Contains(err.Error(), remedy) || strings.Contains(err.Error(), "driver") {
		t.Errorf("open what the library leaves out: %v", err)
	}
	for _, name := range []string{node, filepath.Join(nodes, "uverbs3")} {
		check(t, os.WriteFile(name, nil, 0o600))
	}
	infos, err := p.Devices()
	if len(infos) != 2 || err == nil || !strings.Contains(err.Error(), "see mlx5_0: ") || !strings.Contains(err.Error(), "no driver for mlx5_1: install") {
		t.Errorf("one device without its file, and one without a driver: got %v, %v", infos, err)
	}
	open("open a file without a device", syscall.ENXIO, node+" leads to no device")
	open("open what the user may not", syscall.EACCES, "may not use /dev/infiniband")
}

// TestListed: the kernel's list names each device and its file.
func TestListed(t *testing.T) {
	class := t.TempDir()
	check(t, os.Mkdir(filepath.Join(class, "uverbs7"), 0o700))
	check(t, os.WriteFile(filepath.Join(class, "uverbs7", "ibdev"), []byte("mlx5_0\n"), 0o600))
	check(t, os.WriteFile(filepath.Join(class, "abi_version"), []byte("6\n"), 0o600))
	if got := listed(class); len(got) != 1 || got[0] != (kernelDevice{"mlx5_0", "uverbs7"}) {
		t.Errorf("got %v", got)
	}
}

// TestOldLibrary: a library that lacks a symbol says so.
func TestOldLibrary(t *testing.T) {
	_, err := ibv.Load("libc.so.6")
	wantErr(t, "load", err, ibv.ErrNoLibrary, "libc.so.6 is older than rdma-core 33: it lacks ")
}

// TestTables: GID types, the IB port's attributes, and entries that are not there.
func TestTables(t *testing.T) {
	d := fake(t).device(t, fakeName)
	defer d.Close()
	es := must(d.GIDs(rocePort))(t)
	if len(es) != 4 || es[2].Type != verbs.GIDTypeRoCEv1 || es[3].Type != verbs.GIDTypeRoCEv2 || es[3].GID.Addr().String() != "10.0.0.1" || es[3].Netdev == "" {
		t.Errorf("GIDs of the RoCE port: %+v", es)
	}
	if es = must(d.GIDs(ibPort))(t); len(es) != 1 || es[0].Type != verbs.GIDTypeIB || es[0].Netdev != "" {
		t.Errorf("GIDs of the InfiniBand port: %+v", es)
	}
	a := must(d.QueryPort(ibPort))(t)
	if a.LinkLayer != verbs.LinkLayerInfiniBand || a.LID == 0 || a.SMLID != 1 || a.ActiveMTU != verbs.MTU2048 || a.ActiveSpeed != 32 {
		t.Errorf("the InfiniBand port: %+v", a)
	}
	for _, index := range []int{-1, 1, 100} {
		_, err := d.GID(ibPort, index)
		wantErr(t, "a GID that is not there", err, verbs.ErrNotFound)
		_, err = d.PKey(ibPort, index)
		wantErr(t, "a P_Key that is not there", err, verbs.ErrNotFound)
	}
	if k := must(d.PKey(ibPort, 0))(t); k != 0xffff {
		t.Errorf("P_Key %v", k)
	}
}

// TestErrors: each call may fail. Its error has the kind of the errno, names the call, and leaves nothing behind.
func TestErrors(t *testing.T) {
	f := fake(t)
	p := newPair(t, f, fakeName)
	srq := must(p.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 4, MaxSGE: 1}))(t)
	defer srq.Close()
	buf := make([]byte, 4096)
	path := verbs.AHAttr{DGID: must(p.dev.GID(rocePort, rocev2))(t).GID, SGIDIndex: rocev2}
	ignore := func(_ any, err error) error { return err }
	for _, c := range []struct {
		call  string
		errno syscall.Errno
		kind  error
		part  string
		do    func() error
	}{
		{"ibv_alloc_pd", syscall.ENOMEM, verbs.ErrLimit, "alloc pd on", func() error { return ignore(p.dev.AllocPD()) }},
		{"ibv_create_cq", syscall.EINVAL, verbs.ErrInvalid, "create cq on", func() error { return ignore(p.dev.CreateCQ(1)) }},
		{"ibv_resize_cq", syscall.ENOSYS, verbs.ErrUnsupported, "resize", func() error { return p.cq.Resize(100) }},
		{"ibv_create_qp", syscall.ENOSPC, verbs.ErrLimit, "create qp in", func() error {
			return ignore(p.pd.CreateQP(verbs.QPInitAttr{SendCQ: p.cq, RecvCQ: p.cq}))
		}},
		{"ibv_modify_qp", syscall.ENODATA, verbs.ErrNotFound, "modify", func() error {
			return p.a.Modify(&verbs.QPAttr{MinRNRTimer: 1}, verbs.MaskMinRNRTimer)
		}},
		{"ibv_query_qp", syscall.EIO, syscall.EIO, "the device has failed or is gone", func() error { _, _, err := p.a.Query(); return err }},
		{"ibv_create_srq", syscall.ENOMEM, verbs.ErrLimit, "create srq in", func() error { return ignore(p.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 1})) }},
		{"ibv_modify_srq", syscall.EOPNOTSUPP, verbs.ErrUnsupported, "modify", func() error { return srq.Modify(verbs.SRQAttr{Limit: 1}, verbs.SRQMaskLimit) }},
		{"ibv_create_ah", syscall.EINVAL, verbs.ErrInvalid, "create ah in", func() error { return ignore(p.pd.CreateAH(path)) }},
		{"ibv_alloc_mw", eNotSupp, verbs.ErrUnsupported, "alloc mw in", func() error { return ignore(p.pd.AllocMW(verbs.MWType1)) }},
		{"ibv_query_port", syscall.ENODEV, syscall.ENODEV, "query port of", func() error { return ignore(p.dev.QueryPort(1)) }},
		{"ibv_query_device", syscall.EPERM, syscall.EPERM, "in a container, is the device allowed?", func() error { return ignore(p.dev.Query()) }},
		{"ibv_reg_mr_iova2", syscall.EFAULT, verbs.ErrInvalid, "cannot be read or, with ACCESS_LOCAL_WRITE, written", func() error { return ignore(p.pd.RegMR(buf, 0)) }},
		{"ibv_reg_mr_iova2", syscall.EINVAL, verbs.ErrInvalid, "5 bytes into a page", func() error {
			return ignore(p.pd.RegMRIOVA(p.mr.Bytes()[5:], 1<<20, 0))
		}},
		{"ibv_rereg_mr", syscall.EINVAL, syscall.EINVAL, "the region may only be closed now", func() error { return p.mr.Rereg(verbs.ReregAccess, nil, nil, everything) }},
		{"ibv_rereg_mr", syscall.EOPNOTSUPP, verbs.ErrUnsupported, "reregister", func() error { return p.mr.Rereg(verbs.ReregAccess, nil, nil, everything) }},
		{"ibv_post_send", syscall.ENOMEM, verbs.ErrQueueFull, "poll for completions", func() error { return p.a.PostOneSend(p.write(1)) }},
		{"ibv_post_recv", syscall.EAGAIN, verbs.ErrQueueFull, "post receive to", func() error { return p.a.PostOneRecv(1) }},
		{"ibv_post_srq_recv", syscall.EINVAL, verbs.ErrInvalid, "post receive to", func() error { return ignore(srq.PostRecv(make([]verbs.RecvWR, 1))) }},
		{"ibv_open_device", syscall.EACCES, syscall.EACCES, "may not use /dev/infiniband", func() error { return ignore(f.Open(fakeName)) }},
		{"ibv_create_comp_channel", syscall.EMFILE, verbs.ErrLimit, "ulimit -n", func() error { return ignore(f.Open(fakeName)) }},
		{"ibv_get_device_list", syscall.ENOMEM, verbs.ErrLimit, "ibv_get_device_list", func() error { return ignore(f.Devices()) }},
	} {
		before := f.live()
		f.fail(c.call, int32(c.errno))
		err := c.do()
		wantErr(t, c.call, err, c.kind, c.part)
		wantErr(t, c.call, err, c.errno)
		if c.errno == syscall.EINVAL && c.call == "ibv_rereg_mr" && errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: %v says that the region is as it was", c.call, err)
		}
		if n := f.live() - before; n != 0 {
			t.Errorf("%s: %d objects are left", c.call, n)
		}
	}
}

// TestListOfMany: a list that is longer than a batch goes in parts. If one work request is refused, those before it are
// posted, and the number says how many.
func TestListOfMany(t *testing.T) {
	p := newPair(t, fake(t), fakeName)
	wrs := make([]verbs.SendWR, pairDepth+7)
	for i := range wrs {
		wrs[i] = p.write(uint64(i))
		wrs[i].SGList = []verbs.SGE{p.mr.SGE(0, 2), p.mr.SGE(2, 0), p.mr.SGE(2, 2), p.mr.SGE(4, 4)}[:1+i%4]
	}
	n, err := p.a.PostSend(wrs)
	wantErr(t, "more than the queue holds", err, verbs.ErrQueueFull, "work request 64 of the list")
	if n != pairDepth {
		t.Errorf("%d are posted, want %d", n, pairDepth)
	}
	wcs := make([]verbs.WC, 2*pairDepth)
	if got := must(p.cq.Poll(wcs))(t); got != pairDepth {
		t.Fatalf("%d completions, want %d", got, pairDepth)
	}
	for i := range pairDepth {
		if wc := &wcs[i]; wc.ID != uint64(i) || wc.Status != verbs.WCSuccess || wc.QP != p.a || wc.Op != verbs.WCRDMAWrite {
			t.Fatalf("completion %d: %+v", i, wc)
		}
	}
	recvs := make([]verbs.RecvWR, pairDepth+1)
	n, err = p.b.PostRecv(recvs)
	wantErr(t, "more receives than the queue holds", err, verbs.ErrQueueFull, "work request 64 of the list")
	if n != pairDepth {
		t.Errorf("%d receives are posted, want %d", n, pairDepth)
	}
}

// TestEmptySGEs: an SGE without bytes takes none, in a message and in a receive.
func TestEmptySGEs(t *testing.T) {
	p := newPair(t, fake(t), fakeName)
	copy(p.mr.Bytes(), "abcdefgh")
	check(t, p.b.PostOneRecv(1, p.mr.SGE(64, 0), p.mr.SGE(128, 3), p.mr.SGE(64, 0), p.mr.SGE(256, 5)))
	check(t, p.a.PostOneSend(verbs.SendWR{Op: verbs.OpSend}, p.mr.SGE(512, 0), p.mr.SGE(0, 6), p.mr.SGE(512, 0), p.mr.SGE(6, 2)))
	var wcs [2]verbs.WC
	if n := must(p.cq.Poll(wcs[:]))(t); n != 2 && n != 1 || wcs[0].Err() != nil {
		t.Fatalf("%d completions, %v", n, wcs[0].Err())
	}
	if got := string(p.mr.Bytes()[128:131]) + string(p.mr.Bytes()[256:261]) + string(p.mr.Bytes()[64:67]); got != "abcdefgh\x00\x00\x00" {
		t.Errorf("received %q", got)
	}
}

// TestInline: inline data comes from the region that an SGE names, whatever its addresses, and nothing is read that no
// region has. Lists of inline data that do not fit the memory together go in parts.
func TestInline(t *testing.T) {
	p := newPair(t, fake(t), fakeName)
	mr := must(p.pd.RegMRIOVA(make([]byte, 256), 1<<40, 0))(t)
	defer mr.Close()
	for i := range mr.Bytes() {
		mr.Bytes()[i] = byte(i)
	}
	wrs := make([]verbs.SendWR, 4*16)
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: uint64(i), Op: verbs.OpRDMAWrite, Flags: verbs.SendInline | verbs.SendSignaled, Remote: p.mr.Remote(i * 64),
			SGList: []verbs.SGE{mr.SGE(i, 20), mr.SGE(0, 0), mr.SGE(i+20, 44)}}
		if i%2 == 1 {
			wrs[i].InlineData = mr.Bytes()[i : i+64]
		}
	}
	if n, err := p.a.PostSend(wrs); n != len(wrs) || err != nil {
		t.Fatalf("%d posted: %v", n, err)
	}
	for i := range wrs {
		for j := range 64 {
			if got := p.mr.Bytes()[i*64+j]; got != byte(i+j) {
				t.Fatalf("byte %d of work request %d is %d, want %d", j, i, got, byte(i+j))
			}
		}
	}
	must(p.cq.Poll(make([]verbs.WC, 100)))(t)
	for what, sge := range map[string]verbs.SGE{
		"no such region": {Addr: 1 << 40, Length: 8, LKey: mr.LKey() + 1}, "behind its end": {Addr: mr.Addr() + 250, Length: 8, LKey: mr.LKey()},
		"before its start": {Addr: mr.Addr() - 8, Length: 8, LKey: mr.LKey()},
	} {
		n, err := p.a.PostSend([]verbs.SendWR{p.write(1), {Op: verbs.OpSend, Flags: verbs.SendInline, SGList: []verbs.SGE{sge}}})
		wantErr(t, what, err, verbs.ErrInvalid, "inline data of an SGE", "work request 1 of the list")
		if n != 1 {
			t.Errorf("%s: %d are posted, want the one before it", what, n)
		}
	}
}

// TestCompletionsOutlive: the completions of a QP that is closed, or has gone to RESET, stay in the CQ and name that QP. The
// driver drops them, and gives the number of a closed QP to the next.
func TestCompletionsOutlive(t *testing.T) {
	p := newPair(t, fake(t), fakeName)
	old := p.a
	for i := range 3 {
		check(t, old.PostOneSend(p.write(uint64(i))))
	}
	n := old.QPN()
	check(t, old.Close())
	p.a = p.qp(t)
	if p.a.QPN() != n {
		t.Fatalf("QP %v is not used again: the fake library is to do so", n)
	}
	check(t, p.b.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
	p.connect(t)
	check(t, p.a.PostOneSend(p.write(3)))
	check(t, p.a.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
	check(t, p.b.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
	p.connect(t)
	check(t, p.a.PostOneSend(p.write(4)))
	wcs := make([]verbs.WC, 8)
	got := must(p.cq.Poll(wcs[:2]))(t) // some of those that were kept
	got += must(p.cq.Poll(wcs[got:]))(t)
	if got != 5 {
		t.Fatalf("%d completions, want 5", got)
	}
	for i := range 5 {
		want := p.a
		if i < 3 {
			want = old
		}
		if wcs[i].ID != uint64(i) || wcs[i].QP != want || wcs[i].Status != verbs.WCSuccess {
			t.Errorf("completion %d: %+v, of %p, want of %p", i, wcs[i], wcs[i].QP, want)
		}
	}
}

// TestResize: completions that wait stay, and fewer places than those are refused.
func TestResize(t *testing.T) {
	p := newPair(t, fake(t), fakeName)
	for i := range 5 {
		check(t, p.a.PostOneSend(p.write(uint64(i))))
	}
	wantErr(t, "too few", p.cq.Resize(4), verbs.ErrBusy)
	check(t, p.cq.Resize(5))
	if p.cq.Cap() != 5 {
		t.Errorf("the CQ has %d places, want 5", p.cq.Cap())
	}
	wcs := make([]verbs.WC, 8)
	if n := must(p.cq.Poll(wcs))(t); n != 5 || wcs[4].ID != 4 {
		t.Errorf("%d completions, the last one %d", n, wcs[4].ID)
	}
	check(t, p.cq.Resize(4*pairDepth))
}

// TestOverrun: a CQ without room fails, and its event names it.
func TestOverrun(t *testing.T) {
	p := newPair(t, fake(t), fakeName)
	check(t, p.cq.Resize(1))
	for i := range 2 {
		check(t, p.a.PostOneSend(p.write(uint64(i))))
	}
	ev := must(p.dev.NextEvent(t.Context()))(t)
	if ev.Type != verbs.EventCQErr || ev.CQ != p.cq {
		t.Errorf("event %+v, want EVENT_CQ_ERR of the CQ", ev)
	}
	wcs := make([]verbs.WC, 2)
	if n, err := p.cq.Poll(wcs[:1]); n != 1 || err != nil {
		t.Errorf("the first completion: %d, %v", n, err)
	}
	_, err := p.cq.Poll(wcs)
	wantErr(t, "poll", err, verbs.ErrCQOverrun)
}

// TestNoEventOfClosed: the events of an object that is closed are forgotten, wherever they wait.
func TestNoEventOfClosed(t *testing.T) {
	f := fake(t)
	p := newPair(t, f, fakeName)
	for range 100 {
		srq := must(p.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 4, MaxSGE: 1}))(t)
		check(t, srq.Modify(verbs.SRQAttr{Limit: 2}, verbs.SRQMaskLimit)) // fewer are there: it raises the event
		check(t, srq.Close())
	}
	srq := must(p.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 4, MaxSGE: 1}))(t)
	defer srq.Close()
	check(t, srq.Modify(verbs.SRQAttr{Limit: 2}, verbs.SRQMaskLimit))
	if ev := must(p.dev.NextEvent(t.Context()))(t); ev.SRQ != srq {
		t.Errorf("event %+v, want the one of the SRQ that is open", ev)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.dev.NextEvent(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("another event: %v", err)
	}
}

// TestCommEst: who asked by NotifyCommEst is called, once, and nobody else hears of it.
func TestCommEst(t *testing.T) {
	p := newPair(t, fake(t), fakeName)
	check(t, p.b.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
	check(t, p.b.Init(rocePort, everything))
	gid := must(p.dev.GID(rocePort, rocev2))(t).GID
	called := make(chan struct{})
	check(t, p.b.NotifyCommEst(func() { close(called) }))
	check(t, p.b.RTR(verbs.Peer{QPN: p.a.QPN(), GID: gid}, verbs.Path{SGIDIndex: rocev2}))
	check(t, p.a.PostOneSend(p.write(1)))
	select {
	case <-called:
	case <-t.Context().Done():
		t.Fatal("nobody was called")
	}
}

// TestConcurrent: QPs are posted to, polled, made and closed by many goroutines at a time.
func TestConcurrent(t *testing.T) {
	const workers, rounds = 8, 300
	f := fake(t)
	p := newPair(t, f, fakeName)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() { // posts to one QP, with the others
			for i := range rounds {
				for {
					err := p.a.PostOneSend(p.write(uint64(w*rounds + i)))
					if err == nil {
						break
					}
					if !errors.Is(err, verbs.ErrQueueFull) {
						t.Error(err)
						return
					}
				}
			}
		})
		wg.Go(func() { // makes a pair on the same device, uses it and closes it
			for range rounds / 20 {
				q := &pair{dev: p.dev, pd: p.pd, mr: p.mr, cq: must(p.dev.CreateCQ(4 * pairDepth))(t)}
				q.a, q.b = q.qp(t), q.qp(t)
				q.connect(t)
				check(t, q.a.PostOneSend(q.write(7)))
				var wcs [1]verbs.WC
				if _, err := q.cq.Wait(t.Context(), wcs[:]); err != nil || wcs[0].QP != q.a {
					t.Errorf("%+v, %v", wcs[0], err)
				}
				check(t, q.a.Close())
				check(t, q.b.Close())
				check(t, q.cq.Close())
			}
		})
	}
	seen := map[uint64]bool{}
	wcs := make([]verbs.WC, 16)
	for len(seen) < workers*rounds {
		n, err := p.cq.Wait(t.Context(), wcs)
		check(t, err)
		for i := range n {
			if wc := &wcs[i]; wc.Status != verbs.WCSuccess || wc.QP != p.a || seen[wc.ID] {
				t.Fatalf("completion %+v", wc)
			}
			seen[wcs[i].ID] = true
		}
	}
	wg.Wait()
}

// TestAgeing: objects that come and go leave nothing behind, in the library or here.
func TestAgeing(t *testing.T) {
	f := fake(t)
	p := newPair(t, f, fakeName)
	round := func() {
		cq := must(p.dev.CreateCQ(8))(t)
		srq := must(p.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 4, MaxSGE: 2}))(t)
		qp := must(p.pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, SRQ: srq, Cap: verbs.QPCap{MaxSendWR: 4, MaxSendSGE: 2}}))(t)
		mr := must(p.pd.RegMR(make([]byte, 100), everything))(t)
		mw := must(p.pd.AllocMW(verbs.MWType2))(t)
		ah := must(p.pd.CreateAH(verbs.AHAttr{DGID: must(p.dev.GID(rocePort, rocev2))(t).GID, SGIDIndex: rocev2}))(t)
		for _, c := range []interface{ Close() error }{ah, mw, mr, qp, srq, cq} {
			check(t, c.Close())
		}
	}
	round()
	live, mapped := f.live(), ibv.Mapped()
	for range 2000 {
		round()
	}
	if n := f.live(); n != live {
		t.Errorf("%d objects of the library's, and %d at first", n, live)
	}
	if n := ibv.Mapped(); n != mapped {
		t.Errorf("%d bytes are mapped for calls, and %d at first", n, mapped)
	}
	d := p.dev.Provider().(*device)
	for what, n := range map[string]int{"CQs": len(d.cqs.m), "QPs": len(d.qps.m), "SRQs": len(d.srqs.m), "MRs": len(d.mrs.m)} {
		if want := map[string]int{"CQs": 1, "QPs": 2, "MRs": 1}[what]; n != want {
			t.Errorf("%d %s are known, want %d", n, what, want)
		}
	}
	left := 0
	pinned.Range(func(any, any) bool { left++; return true })
	if left != 0 {
		t.Errorf("%d memories are pinned", left)
	}
}

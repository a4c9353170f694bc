package uapi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestParseWrite parses commands of both forms, and refuses those whose lengths are not right.
func TestParseWrite(t *testing.T) {
	old := Append(nil, Header{Command: uint32(CmdRegMR), InWords: (8 + 40 + 8) / 4, OutWords: 12 / 4})
	old = Append(old, RegMR{Response: 0x1000, Start: 0x2000, Length: 77, HCAVA: 0x3000, PDHandle: 5, AccessFlags: 7})
	old = append(old, 1, 2, 3, 4, 5, 6, 7, 8)
	c, err := ParseWrite(old)
	if err != nil {
		t.Fatal(err)
	}
	if c.Number != CmdRegMR || c.Out != (Buffer{0x1000, 12}) || len(c.In) != 48 {
		t.Errorf("got %+v, want command %d with 48 bytes of input, and room for 12 at 0x1000", c, CmdRegMR)
	}
	var reg RegMR
	if err := Decode(c.In, &reg); err != nil || reg.Length != 77 || reg.HCAVA != 0x3000 || reg.AccessFlags != 7 {
		t.Errorf("got %+v, %v", reg, err)
	}
	if core, driver := c.Split(8); core != (Buffer{0x1000, 8}) || driver != (Buffer{0x1008, 4}) {
		t.Errorf("split: got %v and %v, want 8 bytes, and the 4 behind them", core, driver)
	}

	ex := Append(nil, Header{Command: uint32(CmdExCreateCQ), InWords: 4, OutWords: 2})
	ex = Append(ex, ExHeader{Response: 0x4000, ProviderInWords: 1, ProviderOutWords: 2})
	ex = Append(ex, ExCreateCQ{CQE: 9, CompChannel: -1})
	ex = append(ex, 8, 7, 6, 5, 4, 3, 2, 1)
	c, err = ParseWrite(ex)
	if err != nil {
		t.Fatal(err)
	}
	want := Command{Number: CmdExCreateCQ, In: ex[24:56], DriverIn: ex[56:], Out: Buffer{0x4000, 16}, DriverOut: Buffer{0x4010, 16}}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got %+v, want %+v", c, want)
	}
	if core, driver := c.Split(8); core != want.Out || driver != want.DriverOut {
		t.Errorf("split: got %v and %v, want %v and %v", core, driver, want.Out, want.DriverOut)
	}

	for name, b := range map[string][]byte{
		"nothing":                 nil,
		"half a header":           old[:4],
		"a word too few":          old[:len(old)-4],
		"a byte too many":         append(bytes.Clone(old), 0),
		"extended, cut":           ex[:len(ex)-8],
		"extended, header only":   ex[:8],
		"flags that do not exist": Append(nil, Header{Command: 1 << 30, InWords: 2}),
		"no address of response":  Append(nil, Header{Command: uint32(CmdQueryDevice), InWords: 2, OutWords: 2}),
	} {
		if c, err := ParseWrite(b); err == nil {
			t.Errorf("%s: got %+v, want an error", name, c)
		}
	}
}

// TestParseDoorbell tells the doorbell from other commands, and finds the QP as the general way does.
func TestParseDoorbell(t *testing.T) {
	b := Append(nil, Header{Command: uint32(CmdPostSend), InWords: PostSendSize / 4, OutWords: 1})
	b = Append(b, PostSend{Response: 0x1111, QPHandle: 77, WRCount: 1, SGECount: 2, WQESize: 3})
	if qp, ok := ParseDoorbell(b); !ok || qp != 77 {
		t.Errorf("got QP %d, %v, want 77", qp, ok)
	}
	if n := testing.AllocsPerRun(100, func() { ParseDoorbell(b) }); n != 0 {
		t.Errorf("it allocates %v times, want never", n)
	}
	other := bytes.Clone(b)
	other[0] = byte(CmdPostRecv)
	words := bytes.Clone(b)
	words[4]++
	for name, b := range map[string][]byte{"nothing": nil, "a part": b[:len(b)-1], "more": append(bytes.Clone(b), 0), "another command": other, "another length": words} {
		if qp, ok := ParseDoorbell(b); ok {
			t.Errorf("%s: got QP %d, want none", name, qp)
		}
	}
}

// TestIoctl parses an INVOKE_WRITE, whose input is inside where it is short, and in the program's memory where not.
func TestIoctl(t *testing.T) {
	attrs := []Attr{
		{AttrID: AttrWriteCmd, Len: 4, Flags: AttrMandatory, Data: uint64(CmdCreateSRQ)},
		{AttrID: AttrCoreIn, Len: 40, Data: 0x1000},
		{AttrID: AttrCoreOut, Len: 16, Data: 0x2000},
		{AttrID: AttrUHWIn, Len: 3, Data: 0x030201},
		{AttrID: AttrUHWOut, Len: 24, Data: 0x3000},
	}
	b := Append(nil, IoctlHeader{Length: uint16(IoctlHeaderSize + len(attrs)*AttrSize), MethodID: MethodInvokeWrite, NumAttrs: uint16(len(attrs))})
	b = Append(b, attrs)
	if n, err := ParseIoctlHeader(b); err != nil || n != len(b) {
		t.Errorf("got length %d, %v, want %d", n, err, len(b))
	}
	call, err := ParseIoctl(b)
	if err != nil || call.Object != ObjectDevice || !reflect.DeepEqual(call.Attrs, attrs) {
		t.Fatalf("got %+v, %v, want %+v", call, err, attrs)
	}
	c, err := call.Command(func(addr uint64, b []byte) error {
		if addr != 0x1000 || len(b) != 40 {
			t.Errorf("reads %d bytes at %#x, want 40 at 0x1000", len(b), addr)
		}
		copy(b, Append(nil, CreateSRQ{PDHandle: 3, MaxWR: 4, MaxSGE: 5}))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var s CreateSRQ
	if err := Decode(c.In, &s); err != nil || s.MaxSGE != 5 {
		t.Errorf("got %+v, %v", s, err)
	}
	if c.Number != CmdCreateSRQ || !bytes.Equal(c.DriverIn, []byte{1, 2, 3}) || c.Out != (Buffer{0x2000, 16}) || c.DriverOut != (Buffer{0x3000, 24}) {
		t.Errorf("got %+v", c)
	}

	fault := errors.New("no such memory")
	if _, err := call.Command(func(uint64, []byte) error { return fault }); !errors.Is(err, fault) {
		t.Errorf("memory that cannot be read: got error %v, want %v", err, fault)
	}
	for name, b := range map[string][]byte{
		"half a header":       b[:12],
		"attributes missing":  b[:len(b)-1],
		"another length":      Append(nil, IoctlHeader{Length: IoctlHeaderSize + 1}),
		"too many attributes": Append(nil, IoctlHeader{Length: IoctlHeaderSize + AttrSize*(MaxAttrs+1), NumAttrs: MaxAttrs + 1}),
	} {
		if c, err := ParseIoctl(b); err == nil {
			t.Errorf("%s: got %+v, want an error", name, c)
		}
	}
	none := Ioctl{}
	if _, err := none.Command(nil); err == nil {
		t.Error("an INVOKE_WRITE that names no command: got no error, want one")
	}
}

// TestAdviseMR parses an ADVISE_MR, whose SGEs are in the program's memory.
func TestAdviseMR(t *testing.T) {
	sges := []SGE{{1, 2, 3}, {4, 5, 6}}
	call := Ioctl{Object: ObjectMR, Method: MethodAdviseMR, Attrs: []Attr{
		{AttrID: AttrAdvisePD, Data: 7}, {AttrID: AttrAdviseAdvice, Len: 8, Data: AdvisePrefetchWrite},
		{AttrID: AttrAdviseFlags, Len: 4, Data: AdviseFlush}, {AttrID: AttrAdviseSGEs, Len: 32, Data: 0x1000},
	}}
	got, err := call.AdviseMR(func(addr uint64, b []byte) error {
		if addr != 0x1000 || len(b) != 32 {
			t.Errorf("reads %d bytes at %#x, want 32 at 0x1000", len(b), addr)
		}
		copy(b, Append(nil, sges))
		return nil
	})
	if want := (AdviseMR{7, AdvisePrefetchWrite, AdviseFlush, sges}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	fault := errors.New("no such memory")
	if _, err := call.AdviseMR(func(uint64, []byte) error { return fault }); !errors.Is(err, fault) {
		t.Errorf("memory that cannot be read: got error %v, want %v", err, fault)
	}
	for i := range call.Attrs {
		less := Ioctl{Attrs: slices.Delete(slices.Clone(call.Attrs), i, i+1)}
		if a, err := less.AdviseMR(nil); err == nil {
			t.Errorf("without attribute %d: got %+v, want an error", i, a)
		}
	}
	for _, n := range []uint16{0, 8, 33} {
		call.Attrs[AttrAdviseSGEs].Len = n
		if a, err := call.AdviseMR(nil); err == nil {
			t.Errorf("SGEs of %d bytes: got %+v, want an error", n, a)
		}
	}
}

// TestDecodePrefix: what an older program leaves out is zero.
func TestDecodePrefix(t *testing.T) {
	whole := CMConnectArg{ID: 7, ECE: CMECE{1, 2}}
	b := Append(nil, whole)
	var got CMConnectArg
	if err := DecodePrefix(b[:CMConnectLeast], CMConnectLeast, &got); err != nil || got.ID != 7 || got.ECE != (CMECE{}) {
		t.Errorf("got %v, %v, %v, want ID 7 and no ECE", got.ID, got.ECE, err)
	}
	if err := DecodePrefix(b, CMConnectLeast, &got); err != nil || got != whole {
		t.Errorf("got ID %v, ECE %v, %v, want %v and %v", got.ID, got.ECE, err, whole.ID, whole.ECE)
	}
	err := DecodePrefix(b[:CMConnectLeast-1], CMConnectLeast, &got)
	if err == nil || !strings.Contains(err.Error(), "280 bytes at least, and 279 came") {
		t.Errorf("a byte too few: got error %v, want one with both lengths", err)
	}
	if err := Decode(b[:len(b)-1], &got); err == nil {
		t.Error("Decode of a byte too few: got no error, want one")
	}
}

// TestWQEs decodes elements of a send and a receive queue, each byte of which is its own place.
func TestWQEs(t *testing.T) {
	b := make([]byte, SendWQESize+2*SGESize)
	for i := range b {
		b[i] = byte(i)
	}
	var w SendWQE
	w.Decode(b)
	at32 := func(i int) uint32 { return native.Uint32(b[i:]) }
	at64 := func(i int) uint64 { return native.Uint64(b[i:]) }
	for name, c := range map[string][2]uint64{
		"wr.wr_id": {w.WRID, at64(0)}, "wr.opcode": {uint64(w.Opcode), uint64(at32(12))}, "wr.send_flags": {uint64(w.SendFlags), uint64(at32(16))},
		"wr.ex":                  {uint64(native.Uint32(w.Ex[:])), uint64(at32(20))},
		"wr.wr.rdma.remote_addr": {w.RemoteAddr, at64(24)}, "wr.wr.rdma.rkey": {uint64(w.RKey), uint64(at32(32))},
		"wr.wr.atomic.compare_add": {w.CompareAdd, at64(32)}, "wr.wr.atomic.swap": {w.Swap, at64(40)}, "wr.wr.atomic.rkey": {uint64(w.AtomicRKey), uint64(at32(48))},
		"wr.wr.ud.remote_qpn": {uint64(w.RemoteQPN), uint64(at32(24))}, "wr.wr.ud.remote_qkey": {uint64(w.RemoteQKey), uint64(at32(28))},
		"wr.wr.ud.ah_num": {uint64(w.AHNum), uint64(at32(36))}, "wr.wr.mw.addr": {w.MWAddr, at64(24)}, "wr.wr.mw.length": {w.MWLength, at64(32)},
		"wr.wr.mw.mr_lkey": {uint64(w.MRLKey), uint64(at32(40))}, "wr.wr.mw.mw_rkey": {uint64(w.MWRKey), uint64(at32(44))},
		"wr.wr.mw.rkey": {uint64(w.NewRKey), uint64(at32(48))}, "wr.wr.mw.access": {uint64(w.Access), uint64(at32(52))},
		"dma.length": {uint64(w.Length), uint64(at32(184))}, "dma.num_sge": {uint64(w.NumSGE), uint64(at32(196))},
	} {
		if c[0] != c[1] {
			t.Errorf("%s: got %#x, want %#x", name, c[0], c[1])
		}
		if _, ok := sendFields[name]; !ok {
			t.Errorf("%s is not compared with the header", name)
		}
	}
	if s := SGEAt(b[SendWQESize:], 1); s != (SGE{at64(SendWQESize + 16), at32(SendWQESize + 24), at32(SendWQESize + 28)}) {
		t.Errorf("second SGE: got %+v", s)
	}
	var r RecvWQE
	if r.Decode(b); r != (RecvWQE{at64(0), at32(28)}) {
		t.Errorf("receive: got %+v", r)
	}
	wc := WC{WRID: 1, Status: 2, Opcode: 3, VendorErr: 4, ByteLen: 5, Ex: [4]byte{6, 7, 8, 9}, QPNum: 10, SrcQP: 11, WCFlags: 12,
		PKeyIndex: 13, SLID: 14, SL: 15, DLIDPathBits: 16, PortNum: 17}
	var e [WCSize]byte
	if wc.Encode(e[:]); !bytes.Equal(e[:], Append(nil, wc)) {
		t.Errorf("completion: got %v, want %v", e, Append(nil, wc))
	}
}

// FuzzCommands parses anything as a command. What is parsed names no byte outside.
func FuzzCommands(f *testing.F) {
	f.Add(Append(nil, Header{Command: uint32(CmdQueryDevice), InWords: 4, OutWords: 44}))
	f.Add(Append(Append(nil, Header{Command: uint32(CmdExCreateQP), InWords: 9, OutWords: 6}), ExHeader{ProviderInWords: 1, ProviderOutWords: 4}))
	f.Add(Append(nil, IoctlHeader{Length: 24 + 16, NumAttrs: 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := ParseWrite(b); err == nil {
			if len(c.In)+len(c.DriverIn) > len(b) {
				t.Errorf("%d bytes of input of %d", len(c.In)+len(c.DriverIn), len(b))
			}
			core, driver := c.Split(len(b))
			if core.Length < 0 || driver.Length < 0 || core.Length+driver.Length > 16*1<<16 {
				t.Errorf("output %v and %v", core, driver)
			}
		}
		if call, err := ParseIoctl(b); err == nil {
			if len(call.Attrs) > MaxAttrs {
				t.Errorf("%d attributes", len(call.Attrs))
			}
			_, _ = call.Command(func(_ uint64, b []byte) error {
				if len(b) > 1<<16 {
					t.Errorf("reads %d bytes", len(b))
				}
				return nil
			})
		}
	})
}

// TestSockaddr: addresses are written as the kernel has them, and read back.
func TestSockaddr(t *testing.T) {
	for _, c := range []struct {
		addr  string
		scope uint32
		want  []byte // the beginning
	}{
		{"192.0.2.1:258", 0, []byte{2, 0, 1, 2, 192, 0, 2, 1}},
		{"[2001:db8::1]:258", 0, []byte{10, 0, 1, 2, 0, 0, 0, 0, 0x20, 1, 0xd, 0xb8}},
		{"[fe80::1]:1", 7, []byte{10, 0, 0, 1, 0, 0, 0, 0, 0xfe, 0x80}},
	} {
		var b SockaddrStorage
		a := netip.MustParseAddrPort(c.addr)
		n := PutSockaddr(b[:], a, c.scope)
		if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 && !bytes.HasPrefix(b[:n], c.want) {
			t.Errorf("%s: got % x, want it to begin with % x", c.addr, b[:n], c.want)
		}
		if got, scope, err := Sockaddr(b[:]); err != nil || got != a || scope != c.scope {
			t.Errorf("%s: read back as %v, scope %d, %v", c.addr, got, scope, err)
		}
	}
	var ib SockaddrStorage
	binary.NativeEndian.PutUint16(ib[:], AFIB)
	if _, _, err := Sockaddr(ib[:]); !errors.Is(err, ErrFamily) {
		t.Errorf("an address of InfiniBand: got %v, want ErrFamily", err)
	}
	if _, _, err := Sockaddr(ib[:8]); err == nil {
		t.Error("an address that is cut off was read")
	}
}

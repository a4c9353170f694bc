package hca

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestDatagramReceived: a datagram from anybody is taken, over both versions of IP, behind its IP header. One of
// another partition, with another Q_Key or with a wrong ICRC is dropped, is counted for its cause, and costs no receive.
func TestDatagramReceived(t *testing.T) {
	const qkey, class = 0x1234567, 46 << 2
	type edit func(p *wire.Packet, b []byte) // the packet before it is encoded, with b nil, and its bytes after that
	packet := func(f func(*wire.Packet)) edit {
		return func(p *wire.Packet, b []byte) {
			if b == nil {
				f(p)
			}
		}
	}
	for _, tt := range []struct {
		name  string
		edit  edit
		want  Drops
		pkeys uint32
		qkeys uint32
	}{
		{name: "good", edit: packet(func(*wire.Packet) {})},
		{name: "P_Key of a limited member", edit: packet(func(p *wire.Packet) { p.PKey = 0x7fff })},
		{name: "P_Key", edit: packet(func(p *wire.Packet) { p.PKey = 0xfffe }), want: Drops{PKey: 1}, pkeys: 1},
		{name: "Q_Key", edit: packet(func(p *wire.Packet) { p.DETH.QKey++ }), want: Drops{QKey: 1}, qkeys: 1},
		{name: "ICRC", edit: func(_ *wire.Packet, b []byte) {
			if b != nil {
				b[len(b)-1] ^= 1
			}
		}, want: Drops{ICRC: 1}},
		{name: "transport version", edit: func(_ *wire.Packet, b []byte) {
			if b != nil {
				b[1] |= 0x0f
			}
		}, want: Drops{Malformed: 1}},
	} {
		for _, addr := range []func(int) netip.Addr{simAddr, simAddr6} {
			t.Run(tt.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					net := sim.New(sim.Config{})
					y := newEnd(t, openDevice(t, net.Netdev("udp", addr(2))), options{typ: verbs.QPTypeUD})
					y.must(y.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR, QKey: qkey}, verbs.MaskState|verbs.MaskQKey))
					mr := y.mr(verbs.GRHSize + 64)
					y.recv(verbs.RecvWR{ID: 7, SGList: []verbs.SGE{mr.SGE(0, mr.Len())}})
					l, err := net.Netdev("hand", addr(1)).Open(addr(1))
					y.must(err)
					defer l.Close()

					label := uint32(0) // of IPv6 headers only
					if addr(1).Is6() {
						label = 0xabcde
					}
					payload := []byte("a datagram")
					send := func(e edit) {
						p := wire.Packet{BTH: wire.BTH{Opcode: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQP: uint32(y.qp.QPN())},
							DETH: wire.DETH{QKey: qkey, SrcQP: 0x77}, Payload: payload}
						e(&p, nil)
						d := link.Datagram{Src: l.Source(1), Dst: netip.AddrPortFrom(addr(2), link.Port), Payload: p.AppendTo(nil), TrafficClass: class, FlowLabel: label}
						f := wire.NewFlow(d.Src, d.Dst)
						f.Seal(0, d.Payload)
						e(nil, d.Payload)
						y.must(l.Send([]link.Datagram{d}))
						synctest.Wait()
					}
					send(tt.edit)
					if got := stats(t, y.dev).Drops; got != tt.want {
						t.Errorf("drops %+v, want %+v", got, tt.want)
					}
					counters, err := y.dev.PortCounters(1)
					y.must(err)
					if got, want := counters.Value("port_rcv_errors"), tt.want.Malformed+tt.want.ICRC; got != want {
						t.Errorf("port_rcv_errors is %d, want %d", got, want)
					}
					if port := impl(y.dev).port.query(); port.BadPKeyCntr != tt.pkeys || port.QKeyViolCntr != tt.qkeys {
						t.Errorf("bad_pkey_cntr %d, qkey_viol_cntr %d; want %d and %d", port.BadPKeyCntr, port.QKeyViolCntr, tt.pkeys, tt.qkeys)
					}
					if tt.want != (Drops{}) {
						y.empty()
						if !bytes.Equal(mr.Bytes(), make([]byte, mr.Len())) {
							t.Errorf("memory is %x, want zeros", mr.Bytes())
						}
						send(packet(func(*wire.Packet) {})) // the receive serves this one
					}
					wc := y.done()
					if wc.ID != 7 || wc.ByteLen != uint32(verbs.GRHSize+len(payload)) || wc.SrcQPN != 0x77 || wc.Flags&verbs.WCFlagGRH == 0 {
						t.Errorf("completion %+v, want ID 7, %d bytes behind a GRH, from QP 0x77", wc, len(payload))
					}
					checkIPHeader(t, mr.Bytes()[:verbs.GRHSize], addr(1), addr(2), class, label, wire.BTHSize+wire.DETHSize+12+wire.ICRCSize)
					if got := mr.Bytes()[verbs.GRHSize:][:len(payload)]; !bytes.Equal(got, payload) {
						t.Errorf("received %q, want %q", got, payload)
					}
				})
			})
		}
	}
}

// checkIPHeader checks the fields that say something of a datagram of n bytes in the 40 bytes before its payload.
func checkIPHeader(t *testing.T, grh []byte, src, dst netip.Addr, class uint8, label uint32, n int) {
	t.Helper()
	if src.Is4() {
		ip := grh[20:]
		if ip[0] != 0x45 || ip[1] != class || int(binary.BigEndian.Uint16(ip[2:])) != 20+8+n || ip[9] != 17 ||
			!bytes.Equal(ip[12:16], src.AsSlice()) || !bytes.Equal(ip[16:20], dst.AsSlice()) {
			t.Errorf("IPv4 header %x, want one of class %#x and %d bytes from %v to %v", ip, class, 28+n, src, dst)
		}
		return
	}
	if binary.BigEndian.Uint32(grh) != 6<<28|uint32(class)<<20|label || int(binary.BigEndian.Uint16(grh[4:])) != 8+n || grh[6] != 17 ||
		!bytes.Equal(grh[8:24], src.AsSlice()) || !bytes.Equal(grh[24:40], dst.AsSlice()) {
		t.Errorf("IPv6 header %x, want one of class %#x, label %#x and %d bytes from %v to %v", grh, class, label, 8+n, src, dst)
	}
}

package ucma

import (
	"bytes"
	"testing"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// ibStorage is a sockaddr_ib.
func ibStorage(gid verbs.GID, service, mask uint64) (s uapi.SockaddrStorage) {
	uapi.PutSockaddrIB(s[:], gid, service, mask, 0xffff)
	return s
}

// TestIB connects by sockaddr_ib, as librdmacm does for a program that names GIDs.
func TestIB(t *testing.T) {
	for _, all := range []bool{false, true} {
		a, b := two(t)
		gid := verbs.GIDFromAddr(b.addr(false, 0).Addr())
		at := gid
		if all {
			at = verbs.GID{}
		}
		l, _ := b.create(uapi.PSTCP)
		b.do(uapi.CMBind, uapi.CMBindArg{ID: l, AddrSize: uapi.SockaddrIBSize, Addr: ibStorage(at, rdmacm.PortSpaceTCP.Service(0), uapi.ServiceMask)}, nil)
		b.do(uapi.CMListen, uapi.CMListenArg{ID: l}, nil)
		ends := func(p *program, id uint32) (src, dst rdmacm.IBAddr) {
			t.Helper()
			var q uapi.CMQueryAddrResp
			p.do(uapi.CMQuery, uapi.CMQueryArg{Response: respAt, ID: id, Option: uapi.CMQueryAddr}, &q)
			read := func(s *uapi.SockaddrStorage, size uint16) rdmacm.IBAddr {
				g, service, _, _, ok := uapi.ReadSockaddrIB(s[:size])
				if !ok {
					t.Fatalf("an address of %d bytes, and no sockaddr_ib: %x", size, s[:size])
				}
				return rdmacm.IBAddr{GID: g, Service: service}
			}
			return read(&q.SrcAddr, q.SrcSize), read(&q.DstAddr, q.DstSize)
		}
		src, _ := ends(b, l)
		if src.GID != at || src.Service>>16 != uapi.PSTCP || src.Service&0xffff == 0 {
			t.Errorf("the listener's address: got %v, want a port at %v", src, at)
		}
		to := rdmacm.IBAddr{GID: gid, Service: src.Service}
		x, _ := a.create(uapi.PSTCP)
		a.do(uapi.CMResolveAddr, uapi.CMResolveAddrArg{ID: x, DstSize: uapi.SockaddrIBSize, DstAddr: ibStorage(to.GID, to.Service, ^uint64(0))}, nil)
		a.next(rdmacm.EventAddrResolved)
		a.do(uapi.CMResolveRoute, uapi.CMResolveRouteArg{ID: x}, nil)
		a.next(rdmacm.EventRouteResolved)
		if _, dst := ends(a, x); dst != to {
			t.Errorf("the peer's address: got %v, want %v", dst, to)
		}
		a.connect(x, a.qp(verbs.QPTypeRC), "by GID")
		ev := b.next(rdmacm.EventConnectRequest)
		if c := conn(&ev); c.PrivateDataLen != rdmacm.MaxIBConnectData || !bytes.HasPrefix(c.PrivateData[:], []byte("by GID\x00")) {
			t.Errorf("private data: got %q, want it in %d bytes", c.PrivateData[:c.PrivateDataLen], rdmacm.MaxIBConnectData)
		}
		own, peer := ends(b, ev.ID)
		if from, _ := ends(a, x); own != to || peer.GID != from.GID {
			t.Errorf("the request's addresses: got %v and %v, want %v and %v", own, peer, to, from)
		}
		b.accept(ev.ID, b.qp(verbs.QPTypeRC), "")
		a.next(rdmacm.EventConnectResponse)
	}
}

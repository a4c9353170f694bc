package diagnose_test

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/diagnose"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// A conversation, and the findings that it must have: findings are all errors and warnings; notes are some.
type conversation struct {
	name     string
	play     func(s *script)
	findings []string
	notes    []string
}

// scripts are conversations.
var scripts = append(slices.Concat(iwarpScripts, silenceScripts, unreliableScripts, networkScripts, incompleteScripts, damageScripts, ulpScripts), []conversation{
	{"one direction", func(s *script) {
		for i := range 5 {
			s.ab(write(wire.PSN(i), wire.RCRDMAWriteOnly, 64))
		}
	}, nil, []string{"CAP-ONEWAY"}},
	{"packets are cut", func(s *script) {
		for i := range 5 {
			w := write(wire.PSN(i), wire.RCRDMAWriteOnly, 1024)
			w.DestQP = qpB
			s.put(s.bytes(s.a, s.b, w), 100)
			s.ba(ack(wire.PSN(i)))
		}
	}, nil, []string{"CAP-SNAP"}},
	{"packets are cut within their headers", func(s *script) {
		for i := range 5 {
			psn := wire.PSN(3 * i)
			for k, op := range []wire.Opcode{wire.RCRDMAWriteFirst, wire.RCRDMAWriteMiddle, wire.RCRDMAWriteLast} {
				w := write(psn.Add(k), op, 1024)
				w.DestQP = qpB
				s.put(s.bytes(s.a, s.b, w), 50) // the RETH is from byte 40 to 55
			}
			s.ba(ack(psn.Add(2)))
		}
	}, nil, []string{"CAP-SNAP"}},
	{"READs are cut within their headers", func(s *script) {
		s.ab(write(0, wire.RCRDMAWriteFirst, 1024))
		s.ab(write(1, wire.RCRDMAWriteLast, 8))
		s.ba(ack(1))
		for i := range 3 {
			psn := wire.PSN(2 + 3*i)
			s.put(s.bytes(s.a, s.b, wire.Packet{BTH: wire.BTH{Opcode: wire.RCRDMAReadRequest, DestQP: qpB, PSN: psn, AckReq: true}, RETH: wire.RETH{VA: 0x1000, RKey: 7, Length: 3000}}), 50)
			for k, op := range []wire.Opcode{wire.RCRDMAReadResponseFirst, wire.RCRDMAReadResponseMiddle, wire.RCRDMAReadResponseLast} {
				s.ba(wire.Packet{BTH: wire.BTH{Opcode: op, PSN: psn.Add(k)}, AETH: wire.AETH{Syndrome: wire.SyndromeACK(31), MSN: 2}, Payload: make([]byte, 1000)})
			}
		}
	}, nil, []string{"CAP-SNAP"}},
	{"packets are cut within the BTH", func(s *script) {
		for i := range 5 {
			w := write(wire.PSN(i), wire.RCRDMAWriteOnly, 64)
			w.DestQP = qpB
			s.put(s.bytes(s.a, s.b, w), 34)
		}
	}, nil, []string{"CAP-SNAP"}},
	{"a mirror of both ports", func(s *script) {
		for i := range 60 {
			s.ab(write(wire.PSN(i), wire.RCRDMAWriteOnly, 64))
			s.put(s.frames[len(s.frames)-1].Data, 0)
			s.ba(ack(wire.PSN(i)))
			s.put(s.frames[len(s.frames)-1].Data, 0)
		}
	}, nil, []string{"CAP-DUP"}},
	{"trains", func(s *script) {
		s.good(0, 3)
		s.train(write(3, wire.RCRDMAWriteMiddle, 1024), write(4, wire.RCRDMAWriteMiddle, 1024), write(5, wire.RCRDMAWriteLast, 12))
		s.ba(ack(5))
		s.train(write(6, wire.RCRDMAWriteOnly, 4096), write(7, wire.RCRDMAWriteOnly, 4096), write(8, wire.RCRDMAWriteOnly, 4096))
		s.ba(ack(8))
	}, nil, []string{"CAP-TRAIN"}},
	{"a train with a gap", func(s *script) {
		s.good(0, 3)
		s.train(write(3, wire.RCRDMAWriteOnly, 64), write(5, wire.RCRDMAWriteOnly, 64))
		s.ba(answer(4, wire.SyndromeNAK(wire.NAKSequenceError)))
		s.train(write(4, wire.RCRDMAWriteOnly, 64), write(5, wire.RCRDMAWriteOnly, 64))
		s.ba(ack(5))
	}, []string{"LOSS-NAK"}, []string{"CAP-TRAIN"}},
	{"XRC", func(s *script) {
		xrc := func(psn wire.PSN, op wire.Opcode) wire.Packet {
			return wire.Packet{BTH: wire.BTH{Opcode: wire.XRC | op, PSN: psn, AckReq: true}, XRCETH: wire.XRCETH{SRQN: 5}, RETH: wire.RETH{VA: 0x1000, RKey: 7, Length: 3000}, Payload: make([]byte, 8)}
		}
		xack := func(psn wire.PSN, s wire.Syndrome) wire.Packet {
			w := answer(psn, s)
			w.Opcode |= wire.XRC
			return w
		}
		for psn := range wire.PSN(4) {
			s.ab(xrc(psn, wire.RCSendOnly))
			s.ba(xack(psn, wire.SyndromeACK(31)))
		}
		s.ab(xrc(4, wire.RCRDMAWriteFirst)) // says the path MTU
		s.ab(xrc(5, wire.RCRDMAWriteLast))
		s.ba(xack(5, wire.SyndromeACK(31)))
		read := xrc(6, wire.RCRDMAReadRequest)
		read.RETH.Length, read.Payload = 16, nil
		s.ab(read)
		for i, op := range []wire.Opcode{wire.RCRDMAReadResponseFirst, wire.RCRDMAReadResponseLast} {
			w := xack(6+wire.PSN(i), wire.SyndromeACK(31))
			w.Opcode, w.Payload = wire.XRC|op, make([]byte, 8)
			s.ba(w)
		}
		s.ab(xrc(7, wire.RCSendOnly)) // the READ took one PSN, since its length fits any path MTU
		s.ba(xack(7, wire.SyndromeACK(31)))
	}, nil, nil},
	{"XRC with a loss", func(s *script) {
		for _, psn := range []wire.PSN{0, 1, 3, 2, 3} {
			w := write(psn, wire.XRC|wire.RCRDMAWriteOnly, 64)
			s.ab(w)
			w = ack(psn)
			if psn == 3 && s.id < 1008 {
				w = answer(2, wire.SyndromeNAK(wire.NAKSequenceError))
			}
			w.Opcode |= wire.XRC
			s.ba(w)
		}
	}, []string{"LOSS-NAK"}, nil},
	{"XRC without an answer", func(s *script) {
		s.ba(write(0, wire.RCRDMAWriteOnly, 8)) // the path is there
		s.ab(ack(0))
		for range 4 {
			s.ab(write(7, wire.XRC|wire.RCRDMAWriteOnly, 64))
			s.now += 500 * time.Millisecond
		}
	}, []string{"RC-SILENT"}, nil},
	{"an XRC SRQ that is not there", func(s *script) {
		w := write(0, wire.XRC|wire.RCSendOnly, 64)
		s.ab(w)
		w = answer(0, wire.SyndromeNAK(wire.NAKInvalidRequest))
		w.Opcode |= wire.XRC
		s.ba(w)
	}, []string{"NAK-INVALID"}, nil},
	{"FLUSH and ATOMIC WRITE", func(s *script) {
		for i := range wire.PSN(60) {
			op, payload := wire.RCFlush, []byte(nil)
			if i%2 == 1 {
				op, payload = wire.RCAtomicWrite, make([]byte, 8)
			}
			s.ab(wire.Packet{BTH: wire.BTH{Opcode: op, PSN: i}, FETH: wire.FETH{Placement: wire.FlushGlobal}, RETH: wire.RETH{VA: 0x1000, RKey: 7, Length: 8}, Payload: payload})
			if i == 30 {
				s.now += 50 * time.Millisecond // a FLUSH to storage takes its time, and is no READ
			}
			s.ba(wire.Packet{BTH: wire.BTH{Opcode: wire.RCRDMAReadResponseOnly, PSN: i}, AETH: wire.AETH{Syndrome: wire.SyndromeACK(31)}})
		}
	}, nil, nil},
	{"a FLUSH that is lost", func(s *script) {
		s.good(0, 3)
		flush := wire.Packet{BTH: wire.BTH{Opcode: wire.RCFlush, PSN: 3}, FETH: wire.FETH{Placement: wire.FlushGlobal}, RETH: wire.RETH{VA: 0x1000, RKey: 7, Length: 8}}
		s.ab(flush)
		s.now += 20 * time.Millisecond
		s.ab(flush)
		s.ba(wire.Packet{BTH: wire.BTH{Opcode: wire.RCRDMAReadResponseOnly, PSN: 3}, AETH: wire.AETH{Syndrome: wire.SyndromeACK(31)}})
		s.good(4, 2)
	}, []string{"LOSS-TIMEOUT"}, nil},
	{"a FLUSH without permission", func(s *script) {
		s.good(0, 1)
		s.ab(wire.Packet{BTH: wire.BTH{Opcode: wire.RCFlush, PSN: 1}, FETH: wire.FETH{Placement: wire.FlushPersistent}, RETH: wire.RETH{VA: 0x1000, RKey: 7, Length: 8}})
		s.ba(answer(1, wire.SyndromeNAK(wire.NAKRemoteAccessError)))
	}, []string{"NAK-ACCESS"}, nil},
	{"a FLUSH that the peer does not know", func(s *script) {
		s.good(0, 1)
		s.ab(wire.Packet{BTH: wire.BTH{Opcode: wire.RCFlush, PSN: 1}, FETH: wire.FETH{Placement: wire.FlushPersistent}, RETH: wire.RETH{VA: 0x1000, RKey: 7, Length: 8}})
		s.ba(answer(1, wire.SyndromeNAK(wire.NAKInvalidRequest)))
	}, []string{"NAK-INVALID"}, nil},
	{"a hole of the capture", func(s *script) {
		s.good(0, 5)
		s.good(8, 5)
	}, nil, []string{"CAP-HOLE"}},
	{"no RoCE", func(s *script) {
		s.put(append(ipv4(s.a, s.b, 0, 6, 1, 20), make([]byte, 20)...), 0)
	}, nil, []string{"CAP-NONE"}},
	{"a firewall says so", func(s *script) {
		s.good(0, 2)
		quoted := s.bytes(s.a, s.b, write(9, wire.RCRDMAWriteOnly, 64))[:28]
		s.put(append(ipv4(s.b, s.a, 0, 1, 1, 8+len(quoted)), append([]byte{3, 13, 0, 0, 0, 0, 0, 0}, quoted...)...), 0)
	}, []string{"CM-ICMP"}, nil},
	{"a host without RDMA says so", func(s *script) {
		for range 3 {
			s.req(nil)
			quoted := s.frames[len(s.frames)-1].Data[:28]
			s.put(append(ipv4(s.b, s.a, 0, 1, 1, 8+len(quoted)), append([]byte{3, 3, 0, 0, 0, 0, 0, 0}, quoted...)...), 0)
			s.now += 2 * time.Second
		}
	}, []string{"CM-ICMP"}, nil},
	{"a peer that dies when its answer was missed", func(s *script) {
		s.good(0, 5)
		for range 4 {
			s.now += 500 * time.Millisecond
			s.ab(write(4, wire.RCRDMAWriteOnly, 64))
		}
	}, []string{"RC-DIED"}, nil},
	{"the requester gives up after the REP", func(s *script) {
		s.req(nil)
		s.rep(nil)
		s.mad(false, wire.CMREJ, &wire.REJ{LocalCommID: idA, RemoteCommID: idB, Message: wire.CMMessageREP, Reason: wire.RejTimeout})
	}, []string{"CM-REJ-4"}, nil},
	{"a stale connection", func(s *script) { s.req(nil); s.rej(wire.RejStaleConn, nil) }, []string{"CM-REJ-10"}, nil},
	{"a path MTU that is refused", func(s *script) {
		s.req(nil)
		s.rej(wire.RejInvalidMTU, func(m *wire.REJ) { m.ARILen, m.ARI[0] = 1, 3 })
	}, []string{"CM-REJ-26"}, nil},
	{"a UD service that is not there", func(s *script) {
		s.mad(false, wire.CMSIDRREQ, &wire.SIDRREQ{RequestID: 5, PKey: wire.DefaultPKey, ServiceID: wire.RDMAServiceID(wire.PortSpaceUDP, 7174)})
		s.mad(true, wire.CMSIDRREP, &wire.SIDRREP{RequestID: 5, Status: wire.SIDRUnsupported})
	}, []string{"CM-SIDR"}, nil},
	{"a loop of connections", func(s *script) {
		for i := range 20 {
			id := uint32(100 + i)
			s.req(func(m *wire.REQ) { m.LocalCommID = id })
			s.rej(wire.RejInvalidServiceID, func(m *wire.REJ) { m.RemoteCommID, m.LocalCommID = id, 0 })
			s.now += 100 * time.Millisecond
		}
	}, []string{"CM-REJ-8", "CM-STORM"}, nil},
	{"the first packets of all overtake each other", func(s *script) {
		for _, psn := range []wire.PSN{3, 0, 1, 2} {
			s.ab(write(psn, wire.RCRDMAWriteOnly, 64))
		}
		s.ba(ack(3))
		s.good(4, 2)
	}, []string{"REORDER"}, nil},
	{"a slow accept", func(s *script) { s.req(nil); s.now += 3 * time.Second; s.rep(nil); s.rtu() }, []string{"CM-SLOW"}, nil},
	{"a REQ that is lost", func(s *script) {
		s.req(nil)
		s.now += 4 * time.Second
		s.req(nil)
		s.rep(nil)
		s.rtu()
	}, []string{"CM-REPEAT"}, nil},
	{"both disconnect at once", func(s *script) {
		s.connect()
		s.good(0, 2)
		s.dreq()
		s.mad(true, wire.CMDREQ, &wire.DREQ{LocalCommID: idB, RemoteCommID: idA, RemoteQPN: qpA})
		s.drep()
		s.mad(false, wire.CMDREP, &wire.DREP{LocalCommID: idA, RemoteCommID: idB})
	}, nil, nil},
	{"few retries for RNR", func(s *script) {
		s.req(nil)
		s.rep(func(m *wire.REP) { m.RNRRetryCount = 1 })
		s.rtu()
		send := wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, AckReq: true}, Payload: make([]byte, 64)}
		for range 2 {
			s.ab(send)
			s.ba(answer(0, wire.SyndromeRNR(12)))
			s.now += time.Millisecond
		}
		s.now += 5 * time.Second
		s.dreq()
		s.drep()
	}, []string{"CM-RNR0", "RNR"}, nil},
	{"READs that were not agreed", func(s *script) {
		s.req(nil)
		s.rep(func(m *wire.REP) { m.ResponderResources = 0 })
		s.rtu()
		s.ab(wire.Packet{BTH: wire.BTH{Opcode: wire.RCRDMAReadRequest, AckReq: true}, RETH: wire.RETH{Length: 64}})
		s.ba(answer(0, wire.SyndromeNAK(wire.NAKInvalidRequest)))
		s.ba(write(0, wire.RCRDMAWriteOnly, 8))
		s.ab(ack(0))
		s.ab(wire.Packet{BTH: wire.BTH{Opcode: wire.RCRDMAReadRequest, AckReq: true, PSN: 1}, RETH: wire.RETH{Length: 64}})
	}, []string{"CM-RD0", "NAK-INVALID"}, nil},
	{"a link-local GID", func(s *script) {
		s.req(func(m *wire.REQ) { m.Primary.LocalGID = gidOf(netip.MustParseAddr("fe80::a1")) })
		s.rep(nil)
		s.rtu()
	}, []string{"GID-LL"}, nil},
	{"another address in the GID", func(s *script) {
		s.req(func(m *wire.REQ) { m.Primary.LocalGID = gidOf(netip.MustParseAddr("10.9.9.9")) })
		s.rep(nil)
		s.rtu()
	}, []string{"GID-MISMATCH"}, nil},
	{"a translation of addresses", func(s *script) {
		s.forge = netip.MustParseAddr("192.168.7.7")
		s.req(func(m *wire.REQ) { m.Primary.LocalGID = gidOf(s.forge) })
		s.forge = netip.Addr{}
		s.rep(nil)
	}, []string{"NAT"}, nil},
	{"a peer disconnects too early", func(s *script) {
		s.connect()
		for i := range 3 {
			s.ba(write(wire.PSN(i), wire.RCRDMAWriteOnly, 8))
			if i == 0 {
				s.ab(ack(0))
			}
		}
		s.dreq()
		s.drep()
	}, []string{"PEER-DISC"}, nil},
	{"a peer that disconnects, and answers", func(s *script) {
		s.connect()
		s.ba(write(0, wire.RCRDMAWriteOnly, 8))
		s.ab(ack(0))
		s.ba(write(1, wire.RCRDMAWriteOnly, 8))
		s.dreq()
		s.ab(ack(1))
		s.drep()
	}, nil, nil},
	{"short connections", func(s *script) {
		for i := range uint32(20) {
			idA, idB := 1000+i, 2000+i
			s.req(func(m *wire.REQ) { m.LocalCommID = idA; m.LocalQPN = 0x100 + i })
			s.rep(func(m *wire.REP) { m.RemoteCommID, m.LocalCommID, m.LocalQPN = idA, idB, 0x200+i })
			w := write(0, wire.RCRDMAWriteOnly, 8)
			w.DestQP = 0x200 + i
			s.ab(w)
			w = ack(0)
			w.DestQP = 0x100 + i
			s.ba(w)
			s.mad(false, wire.CMDREQ, &wire.DREQ{LocalCommID: idA, RemoteCommID: idB, RemoteQPN: 0x200 + i})
			s.mad(true, wire.CMDREP, &wire.DREP{LocalCommID: idB, RemoteCommID: idA})
		}
	}, nil, nil},
	{"a disconnect without an answer", func(s *script) {
		s.connect()
		s.good(0, 2)
		for range 3 {
			s.dreq()
			s.now += time.Second
		}
	}, []string{"DREQ-NOANS"}, nil},
	{"a number that is used again", func(s *script) {
		s.connect()
		s.good(100, 2)
		s.ba(write(0, wire.RCRDMAWriteOnly, 8))
		s.ab(ack(0))
		s.now += 5 * time.Second
		s.dreq()
		s.drep()
		s.req(func(m *wire.REQ) { m.LocalCommID = 0xcccc })
		s.rep(func(m *wire.REP) { m.RemoteCommID, m.LocalCommID = 0xcccc, 0xdddd })
		s.good(90, 2)
	}, nil, []string{"QPN-REUSE"}},
	{"NVMe", func(s *script) {
		s.req(func(m *wire.REQ) { m.ServiceID = wire.RDMAServiceID(wire.PortSpaceTCP, 4420) })
		s.rej(wire.RejConsumerDefined, func(m *wire.REJ) { m.PrivateData = [148]byte{0, 0, 6, 0} })
	}, []string{"CM-REJ-28"}, []string{"ULP"}},
	{"identification 0 in a receiver's file", func(s *script) {
		for i := range 5 {
			w := write(wire.PSN(i), wire.RCRDMAWriteOnly, 64)
			w.DestQP = qpB
			b := s.bytes(s.a, s.b, w)
			b[4], b[5] = 0, 0
			s.put(b, 0)
			s.ba(ack(wire.PSN(i)))
		}
	}, nil, []string{"ICRC-ID"}},
	{"a damaged packet, repeated after a timeout", func(s *script) {
		s.good(0, 3)
		s.damaged(write(3, wire.RCRDMAWriteOnly, 64))
		s.now += 20 * time.Millisecond
		s.good(3, 2)
	}, []string{"ICRC-BAD"}, nil},
	{"two path MTUs", func(s *script) {
		s.ba(write(0, wire.RCRDMAWriteFirst, 1024))
		s.ba(write(1, wire.RCRDMAWriteLast, 100))
		s.ab(ack(1))
		s.ab(write(0, wire.RCRDMAWriteFirst, 4096))
		s.ba(answer(0, wire.SyndromeNAK(wire.NAKInvalidRequest)))
	}, []string{"MTU-DIFF"}, nil},
	{"a small path MTU on large links", func(s *script) {
		s.put(append(ipv4(s.a, s.b, 0, 17, 1, 4000), make([]byte, 4000)...), 0)
		s.ab(write(0, wire.RCRDMAWriteFirst, 1024))
		s.ab(write(1, wire.RCRDMAWriteLast, 100))
		s.ba(ack(1))
	}, nil, []string{"MTU-1024"}},
	{"an atomic at an odd address", func(s *script) {
		s.good(0, 1)
		s.ab(wire.Packet{BTH: wire.BTH{Opcode: wire.RCFetchAdd, PSN: 1, AckReq: true}, AtomicETH: wire.AtomicETH{VA: 0x1001}})
		s.ba(answer(1, wire.SyndromeNAK(wire.NAKInvalidRequest)))
	}, []string{"NAK-INVALID"}, nil},
	{"an operational error", func(s *script) {
		s.ab(write(0, wire.RCRDMAWriteOnly, 64))
		s.ba(answer(0, wire.SyndromeNAK(wire.NAKRemoteOperationalError)))
	}, []string{"NAK-OPER"}, nil},
	{"losses in bursts", func(s *script) {
		s.good(0, 800)
		for i := 800; i < 820; i++ {
			s.ab(write(wire.PSN(i), wire.RCRDMAWriteOnly, 64))
			s.ba(answer(wire.PSN(i), wire.SyndromeNAK(wire.NAKSequenceError)))
			s.ab(write(wire.PSN(i), wire.RCRDMAWriteOnly, 64))
			s.ba(ack(wire.PSN(i)))
		}
	}, []string{"LOSS-BURST", "LOSS-NAK"}, []string{"ECN-OFF"}},
	{"most packets are repeats", func(s *script) {
		s.good(0, 1)
		for i := 1; i < 100; i++ {
			for range 3 {
				s.now += 5 * time.Millisecond
				s.ab(write(wire.PSN(i), wire.RCRDMAWriteOnly, 64))
				s.ba(answer(wire.PSN(i), wire.SyndromeNAK(wire.NAKSequenceError)))
			}
			s.ab(write(wire.PSN(i), wire.RCRDMAWriteOnly, 64))
			s.ba(ack(wire.PSN(i)))
		}
	}, []string{"LIVELOCK", "LOSS-NAK"}, nil},
	{"a READ now and then is slow", func(s *script) {
		for i := range 100 {
			s.ab(wire.Packet{BTH: wire.BTH{Opcode: wire.RCRDMAReadRequest, AckReq: true, PSN: wire.PSN(i)}, RETH: wire.RETH{Length: 64}})
			if i%30 == 29 {
				s.now += 20 * time.Millisecond
			}
			s.ba(wire.Packet{BTH: wire.BTH{Opcode: wire.RCRDMAReadResponseOnly, PSN: wire.PSN(i)}, AETH: wire.AETH{Syndrome: wire.SyndromeACK(31)}, Payload: make([]byte, 64)})
		}
	}, nil, []string{"READ-SLOW"}},
	{"two Q_Keys", func(s *script) {
		for _, key := range []uint32{0x1111, 0x1111, 0x2222} {
			s.ab(wire.Packet{BTH: wire.BTH{Opcode: wire.UDSendOnly}, DETH: wire.DETH{QKey: key, SrcQP: qpA}, Payload: make([]byte, 8)})
		}
	}, []string{"QKEY"}, nil},
	{"two partitions", func(s *script) {
		s.ab(write(0, wire.RCRDMAWriteOnly, 64))
		w := ack(0)
		w.PKey = 0x8005
		s.ba(w)
	}, []string{"PKEY"}, nil},
	{"one source port", func(s *script) {
		for i := range uint32(5) {
			w := write(wire.PSN(1000*i), wire.RCRDMAWriteOnly, 64)
			w.DestQP = 0x30 + i
			s.ab(w)
			w = ack(wire.PSN(1000 * i))
			w.DestQP = 0x40 + i
			s.ba(w)
		}
	}, nil, []string{"ECMP"}},
	{"a source port of TFTP", func(s *script) { s.port = 69; s.good(0, 2) }, nil, []string{"PORT-SRC"}},
	{"a slow peer", func(s *script) {
		s.good(0, 2)
		s.ab(write(2, wire.RCRDMAWriteOnly, 64))
		s.now += 20 * time.Millisecond
		s.ab(write(2, wire.RCRDMAWriteOnly, 64))
		s.now += time.Millisecond
		s.ba(ack(2))
		s.ba(ack(2))
		s.good(3, 2)
	}, nil, []string{"LATE"}},
	{"a probe of a message that had arrived", func(s *script) {
		s.good(0, 2)
		s.ab(write(2, wire.RCRDMAWriteFirst, 1024))
		s.ab(write(3, wire.RCRDMAWriteMiddle, 1024))
		s.ab(write(4, wire.RCRDMAWriteLast, 64))
		s.now += 20 * time.Millisecond
		s.ab(write(2, wire.RCRDMAWriteFirst, 1024))
		s.now += 5 * time.Millisecond
		s.ba(ack(4))
		s.good(5, 2)
	}, nil, []string{"LATE"}},
	{"a READ's response that begins anew", func(s *script) {
		read := func(psn wire.PSN, n uint32) wire.Packet {
			return wire.Packet{BTH: wire.BTH{Opcode: wire.RCRDMAReadRequest, AckReq: true, PSN: psn}, RETH: wire.RETH{Length: n}}
		}
		response := func(psn wire.PSN, op wire.Opcode) wire.Packet {
			return wire.Packet{BTH: wire.BTH{Opcode: op, PSN: psn}, AETH: wire.AETH{Syndrome: wire.SyndromeACK(31)}, Payload: make([]byte, 1024)}
		}
		s.ab(read(0, 3072))
		s.ba(response(0, wire.RCRDMAReadResponseFirst))
		s.ba(response(1, wire.RCRDMAReadResponseMiddle))
		s.ba(response(2, wire.RCRDMAReadResponseLast))
		s.ab(read(3, 3072))
		s.ab(read(6, 3072))
		s.ba(response(3, wire.RCRDMAReadResponseFirst))
		s.ba(response(6, wire.RCRDMAReadResponseFirst))
		s.ba(response(7, wire.RCRDMAReadResponseMiddle))
		s.ba(response(8, wire.RCRDMAReadResponseLast))
		s.ab(read(4, 2048))
		s.ba(response(4, wire.RCRDMAReadResponseFirst))
		s.ba(response(5, wire.RCRDMAReadResponseLast))
	}, []string{"LOSS-NAK"}, nil},
	{"a repeat that crosses its answer", func(s *script) {
		s.good(0, 2)
		s.ab(write(2, wire.RCRDMAWriteOnly, 64))
		s.now += 20 * time.Millisecond
		s.ba(ack(2))
		s.ab(write(2, wire.RCRDMAWriteOnly, 64))
		s.ba(ack(2))
		s.good(3, 2)
	}, nil, []string{"LATE"}},
	{"a lost request", func(s *script) {
		s.good(0, 2)
		s.ab(write(2, wire.RCRDMAWriteOnly, 64))
		s.now += 20 * time.Millisecond
		s.ab(write(2, wire.RCRDMAWriteOnly, 64))
		s.ba(ack(2))
		s.good(3, 2)
	}, []string{"LOSS-TIMEOUT"}, nil},
	{"a lost answer", func(s *script) {
		s.good(0, 2)
		s.ab(write(2, wire.RCRDMAWriteOnly, 64))
		s.ba(ack(2))
		s.now += 20 * time.Millisecond
		s.ab(write(2, wire.RCRDMAWriteOnly, 64))
		s.ba(ack(2))
		s.good(3, 2)
	}, []string{"LOSS-ACK"}, nil},
	{"RoCE v1 one way and v2 the other", func(s *script) {
		for i := range 3 {
			w := write(wire.PSN(i), wire.RCRDMAWriteOnly, 64)
			w.DestQP, w.PKey = qpB, wire.DefaultPKey
			datagram := w.AppendTo(nil)
			b := append(make([]byte, 12), 0x89, 0x15, 0x60, 0, 0, 0)
			b = append(binary.BigEndian.AppendUint16(b, uint16(len(datagram))), 0x1b, 64)
			src, dst := s.a.As16(), s.b.As16()
			s.put(append(append(append(b, src[:]...), dst[:]...), datagram...), 0)
			s.frames[len(s.frames)-1].Link = capture.LinkEthernet
			s.ba(ack(wire.PSN(i)))
		}
	}, []string{"GID-LL"}, nil},
	{"a number that another program uses again", func(s *script) {
		s.good(9000, 20)
		s.now += time.Second
		s.good(5000, 20)
		s.good(90000, 20)
	}, nil, nil},
	{"a peer that dies in a stream of long messages", func(s *script) {
		message := func(psn wire.PSN) {
			s.ab(write(psn, wire.RCRDMAWriteFirst, 1024))
			s.ab(write(psn.Add(1), wire.RCRDMAWriteLast, 100))
		}
		message(0)
		s.ba(ack(1)) // covers the packet of the full path MTU too
		for range 4 {
			message(2)
			s.now += 70 * time.Millisecond
		}
	}, []string{"RC-DIED"}, nil},
	{"a process that sees what it sends to its own address's QP 1", func(s *script) {
		s.b = s.a
		out, in := capture.Outbound, capture.Inbound
		as := func(d capture.Direction) { s.frames[len(s.frames)-1].Direction = d }
		s.req(nil)
		as(out)
		s.rep(nil)
		as(in)
		s.rtu()
		as(out)
		s.dreq()
		as(in)
		s.drep()
		as(out)
		s.put(s.frames[len(s.frames)-1].Data, 0)
		as(in)
	}, nil, nil},
	{"a silent peer", func(s *script) {
		s.ba(write(0, wire.RCRDMAWriteOnly, 8)) // the path is there
		s.ab(ack(0))
		for range 4 {
			s.ab(write(7, wire.RCRDMAWriteOnly, 64))
			s.now += 500 * time.Millisecond
		}
	}, []string{"RC-SILENT"}, nil},
}...)

// Each conversation gives exactly its findings, and its notes.
func TestScripts(t *testing.T) {
	testScripts(t, newScript)
}

// The same conversations over XRC have the same findings.
func TestScriptsXRC(t *testing.T) {
	testScripts(t, func() *script {
		s := newScript()
		s.xrc = true
		return s
	})
}

// A NAK for an invalid request does not say that the domain has no such SRQ: the remedy asks, with its number.
func TestUnknownSRQ(t *testing.T) {
	s := newScript()
	s.xrc = true
	s.good(0, 3)
	s.ab(write(3, wire.RCRDMAWriteOnly, 64))
	s.ba(answer(3, wire.SyndromeNAK(wire.NAKInvalidRequest)))
	r := s.report(diagnose.Options{})
	if len(r.Findings) != 1 || !strings.Contains(strings.Join(r.Findings[0].Remedy, "\n"), "an XRC SRQ 0x123456?") {
		t.Errorf("got %+v, want NAK-INVALID, and a remedy that names the SRQ", r.Findings)
	}
}

func testScripts(t *testing.T, begin func() *script) {
	for _, tt := range scripts {
		s := begin()
		tt.play(s)
		r := s.report(diagnose.Options{})
		got, notes := idsOf(r.Findings), idsOf(r.Notes)
		missing := slices.ContainsFunc(tt.notes, func(id string) bool { return !slices.Contains(notes, id) })
		if !slices.Equal(got, tt.findings) || missing {
			var text strings.Builder
			r.Print(&text)
			t.Errorf("%s: %v with notes %v, want %v with %v\n%s", tt.name, got, notes, tt.findings, tt.notes, &text)
		}
	}
}

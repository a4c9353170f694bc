package demo

import (
	"fmt"
	"time"

	"github.com/adverb-rdma/adverb/internal/link/fault"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

func sceneRNR(s *stage) {
	qa, qb := s.connect(wiring{retry: verbs.Retry{Timeout: 14, RetryCount: 7, RNRRetryCount: 2, MaxRDAtomic: 16}})
	s.introduce(qa, qb)

	s.next("A posts a SEND. B has posted no receive, so there is no place for it. B's device answers with an RNR NAK (receiver not ready), " +
		"which carries B's min_rnr_timer: code 12, 0.64 ms. A's device waits so long, and sends again.")
	out, in := s.a.region(64, local, "are you ready?"), s.b.region(64, local, "")
	send := verbs.SendWR{Op: verbs.OpSend, SGList: []verbs.SGE{out.SGE(0, 14)}}
	s.a.post(qa, send)
	s.pass(300 * time.Microsecond)

	s.next("Meanwhile, 0.3 ms later, B posts a receive. The repeated SEND finds it.")
	s.b.recv(qb, in.SGE(0, 64))
	s.b.succeed()
	s.a.succeed()

	s.next("A posts another SEND, and B posts nothing at all. A's rnr_retry is 2: after two repeats A's device gives up. The SEND completes with an " +
		"error, and A's QP is in state ERR. With rnr_retry 7 it would go on without end.")
	s.a.post(qa, send)
	s.a.fail(verbs.WCRNRRetryExceeded)
	s.note("A's QP is in state %v, B's in state %v", qa.State(), qb.State())
}

func sceneRouting(s *stage) {
	qa, qb := s.connect(wiring{})
	s.introduce(qa, qb)
	s.say("The network has several ways, and its switches choose one for each packet. So packets overtake one another.")
	const n = 4096
	src, dst := s.a.filled(n), s.b.region(n, remote, "")
	write := func() {
		first := len(s.sent)
		s.net.Plan(s.a.addr, s.b.addr, 2, fault.Plan{HoldBehind: 2})
		s.a.post(qa, transfer(verbs.OpRDMAWrite, src, dst, 0, n))
		s.a.succeed()
		s.tellWritten(src, dst)
		s.tellPackets(s.sent[first:])
		s.counters(qa, "rcvd_seq_err", "retrans_pkts")
	}

	s.next("A WRITE of 4096 bytes: PSN 0 to 3. PSN 1 takes the longer way, and PSN 2 and 3 are there before it. B's device takes that for a loss, " +
		"and drops both. Then PSN 1 comes. The NAK asks for PSN 2, and A's device sends PSN 2 and 3 again, although the network lost nothing.")
	write()

	s.next("The same with adaptive routing, which both ends must be told of. A's device makes each packet a WRITE ONLY, with an address of its own, and " +
		"sets the mark, by which switches know that the packet may take any way. B's device puts each packet to its place when it comes. It sends a NAK " +
		"only if a packet stays away for longer (here 1 ms).")
	for _, qp := range []*verbs.QP{qa, qb} {
		s.must(qp.SetAdaptiveRouting(verbs.AdaptiveRouting{Send: true, Accept: true}))
	}
	clear(dst.Bytes())
	write()
	s.note("The counters are those from before: no NAK, and no repeat")
}

func sceneMTU(s *stage) {
	qa, qb := s.connect(wiring{})
	s.introduce(qa, qb)
	s.say("The path MTU is the most bytes of payload in a packet: 256, 512, 1024, 2048 or 4096. Here it is 1024.")
	src, dst := s.a.filled(8192), s.b.region(8192, remote, "")
	write := func(n int) {
		first := len(s.sent)
		s.a.post(qa, transfer(verbs.OpRDMAWrite, src, dst, 0, n))
		s.a.succeed()
		s.tellPackets(s.sent[first:])
	}

	s.next("A WRITE of 3072 bytes is three packets. FIRST has a RETH, with the address, the rkey and the length of all three. MIDDLE and LAST have " +
		"a BTH alone: B's device knows where to go on. Only LAST asks for an ACK.")
	first := len(s.sent)
	write(3072)

	s.next("Here are the headers of the first packet, byte by byte, as they stand in the UDP payload.")
	s.tellHeaders(s.sent[first])

	s.next("A WRITE of 1024 bytes fits into one packet, ONLY. It has a RETH and asks for an ACK.")
	write(1024)

	s.next("One byte more makes two packets. A payload is filled up to a multiple of 4 bytes, by the 3 bytes of pad that the BTH names.")
	write(1025)

	s.next("A READ of 3000 bytes is one request. Its answers are the packets with data. They begin with the request's PSN, and take three in all. " +
		"They acknowledge the request too.")
	first = len(s.sent)
	s.a.post(qa, transfer(verbs.OpRDMARead, src, dst, 0, 3000))
	s.a.succeed()
	s.tellPackets(s.sent[first:])

	s.next("A message without a byte is a packet too.")
	write(0)
}

// tellPackets notes packets by operation, PSN and payload.
func (s *stage) tellPackets(list [][]byte) {
	for _, b := range list {
		var p wire.Packet
		s.must(p.Decode(b))
		text := fmt.Sprintf("Packet: %s, PSN %d, payload %d", p.Opcode, p.PSN, len(p.Payload))
		if p.PadCount > 0 {
			text += fmt.Sprintf(", pad %d", p.PadCount)
		}
		if p.AckReq {
			text += ", asks for an ACK"
		}
		s.note("%s", text)
	}
}

// tellHeaders notes the bytes of a WRITE's headers.
func (s *stage) tellHeaders(b []byte) {
	var p wire.Packet
	s.must(p.Decode(b))
	at := 0
	field := func(n int, format string, args ...any) {
		s.columns(at, fmt.Sprintf("%x", b[at:at+n]), fmt.Sprintf(format, args...))
		at += n
	}
	field(1, "BTH opcode: %v", p.Opcode)
	field(1, "BTH solicited event, migration state (set), pad count %d, version %d", p.PadCount, p.TVer)
	field(2, "BTH P_Key: the partition, 0xffff the default")
	field(1, "BTH FECN, BECN: congestion; then reserved bits")
	field(3, "BTH destination QP: B's")
	field(1, "BTH A, the uppermost bit: asks for an ACK; then reserved bits")
	field(3, "BTH PSN: %d", p.PSN)
	field(8, "RETH virtual address in B's memory")
	field(4, "RETH rkey")
	field(4, "RETH DMA length: %d bytes in all packets", p.RETH.Length)
	s.columns(at, "...", fmt.Sprintf("%d bytes of payload", len(p.Payload)))
	s.columns(len(b)-wire.ICRCSize, fmt.Sprintf("%x", b[len(b)-wire.ICRCSize:]), "ICRC, a checksum of all that routers leave as it is")
}

// columns prints a field of a header: its offset, its bytes and its name.
func (s *stage) columns(at int, bytes, what string) {
	if !s.quiet {
		fmt.Fprintf(s.w, "     %4d  %-16s  %s\n", at, bytes, what)
	}
}

func sceneKeys(s *stage) {
	qa, qb := s.connect(wiring{})
	s.introduce(qa, qb)
	const text = "a few words"
	src := s.a.region(64, local, text)
	dst := s.b.region(100, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, "")
	request := func(op verbs.Opcode, to verbs.RemoteAddr) verbs.SendWR {
		return verbs.SendWR{Op: op, SGList: []verbs.SGE{src.SGE(0, len(text))}, Remote: to}
	}
	again := func() { // a QP in ERR is of no more use
		s.must(qa.Close())
		s.must(qb.Close())
		qa, qb = s.connect(wiring{})
	}

	s.next("B registers 100 bytes with LOCAL_WRITE and REMOTE_WRITE. It has one rkey for all of them. A may write anywhere inside: here 40 bytes behind " +
		"the beginning, with the same rkey.")
	s.tellRegion("B's region", dst)
	s.a.post(qa, request(verbs.OpRDMAWrite, dst.Remote(40)))
	s.a.succeed()
	s.note("B's bytes 40 to 50 are %q", dst.Bytes()[40:40+len(text)])

	s.next("A writes %d bytes at 90, of which one is beyond the end. B's device writes none, and answers with a NAK, \"remote access error\". "+
		"The WRITE completes with status 10.", len(text))
	s.a.post(qa, request(verbs.OpRDMAWrite, dst.Remote(90)))
	s.a.fail(verbs.WCRemAccessErr)
	s.note("A's QP is in state %v, B's in state %v: for the next attempt the two make new ones", qa.State(), qb.State())

	s.next("A writes with an rkey that is off by one.")
	again()
	wrong := dst.Remote(0)
	wrong.RKey++
	s.a.post(qa, request(verbs.OpRDMAWrite, wrong))
	s.a.fail(verbs.WCRemAccessErr)

	s.next("A reads. The region allows REMOTE_WRITE, and no REMOTE_READ.")
	again()
	s.a.post(qa, request(verbs.OpRDMARead, dst.Remote(0)))
	s.a.fail(verbs.WCRemAccessErr)

	s.next("A posts two WRITEs: the first with the wrong rkey, the second right. The first fails with status 10. The second is flushed, with status 5, " +
		"which only says that something before it has failed.")
	again()
	s.a.post(qa, request(verbs.OpRDMAWrite, wrong))
	s.a.post(qa, request(verbs.OpRDMAWrite, dst.Remote(0)))
	s.a.fail(verbs.WCRemAccessErr)
	s.a.fail(verbs.WCFlushErr)

	s.next("A uses an lkey that is not its own. A's device finds that out before it sends anything: status 4, a local error, and no packet.")
	again()
	bad := request(verbs.OpRDMAWrite, dst.Remote(0))
	bad.SGList[0].LKey++
	packets := len(s.sent)
	s.a.post(qa, bad)
	s.a.fail(verbs.WCLocProtErr)
	s.note("%d packets were sent", len(s.sent)-packets)
}

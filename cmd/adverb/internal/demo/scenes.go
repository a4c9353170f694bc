package demo

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/adverb-rdma/adverb/internal/link/fault"
	"github.com/adverb-rdma/adverb/verbs"
)

// scenes are the demonstrations of one thing each, on the stage.
var scenes = []struct {
	name string
	does string
	play func(*stage)
	told bool // on InfiniBand: the story has the packets, and flags cannot show them
}{
	{"send", "a SEND in four steps, with each WQE and CQE", sceneSend, false},
	{"atomic", "FETCH_ADD and COMPARE_SWAP, and what they return", sceneAtomic, false},
	{"loss", "a packet that is lost, and how it is repeated", sceneLoss, false},
	{"rnr", "a SEND that comes before the receive is posted", sceneRNR, false},
	{"routing", "packets that overtake one another, without and with adaptive routing", sceneRouting, false},
	{"mtu", "how a message becomes packets, and their headers byte by byte", sceneMTU, false},
	{"subnet", "how a subnet of InfiniBand comes into service: LIDs, forwarding tables, a path", sceneSubnet, true},
	{"stacks", "the headers of a SEND on InfiniBand, RoCEv1, RoCEv2 and iWARP, side by side", sceneStacks, false},
	{"keys", "what rkeys and permissions let through, and what not", sceneKeys, false},
}

const (
	local  = verbs.AccessLocalWrite
	remote = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
)

func (s *stage) lose(from, to *node, nth uint64) {
	s.net.Plan(from.addr, to.addr, nth, fault.Plan{Lost: true})
}

func sceneSend(s *stage) {
	qa, qb := s.connect(wiring{})
	s.introduce(qa, qb)

	s.next("B registers memory and posts a receive. A SEND does not say where its bytes go: the receiver does, beforehand. " +
		"The receive is an entry (WQE) of B's receive queue, with an address, a length and the lkey of the region.")
	in := s.b.region(64, local, "")
	s.tellRegion("B's buffer", in)
	s.b.recv(qb, in.SGE(0, in.Len()))

	const text = "hello, B"
	s.next("A registers memory, writes %q into it, and posts a SEND: a WQE of A's send queue. The call returns at once. From here "+
		"on A's program has no part in it, and must not change the bytes until there is a completion.", text)
	out := s.a.region(64, local, text)
	s.tellRegion("A's buffer", out)
	s.a.post(qa, verbs.SendWR{Op: verbs.OpSend, SGList: []verbs.SGE{out.SGE(0, len(text))}})

	s.next("A's device copies %d bytes from A's buffer into a packet. B's device takes the first WQE of the receive queue, copies the "+
		"bytes from the packet into B's buffer, and puts an entry (CQE) into B's completion queue. A card does both copies by DMA, "+
		"and asks neither a kernel nor a program. B's program polls its CQ.", len(text))
	s.b.succeed()
	s.note("B's buffer now begins with %q", in.Bytes()[:len(text)])

	s.next("B's device acknowledges the packet. The ACK takes the WQE out of A's send queue, and A gets a CQE. A's program may use its " +
		"buffer again. The CQE says that B's device has the message. Whether B's program has looked at it, the CQE does not say.")
	s.a.succeed()
}

func sceneAtomic(s *stage) {
	qa, qb := s.connect(wiring{})
	s.introduce(qa, qb)

	s.next("B registers 8 bytes, which hold the number 37, and allows remote atomics. It tells A the address and the rkey.")
	word := s.b.region(8, remote, "")
	word.Store64(0, 37)
	s.tellRegion("B's number", word)

	s.next("A registers 8 bytes for results, with LOCAL_WRITE, since A's device will write there. A posts FETCH_ADD of 5. B's device reads " +
		"the number, adds, and writes the sum back as one step. The answer carries the number from before.")
	result := s.a.region(8, local, "")
	s.tellRegion("A's result", result)
	sge := []verbs.SGE{result.SGE(0, 8)}
	s.a.post(qa, verbs.SendWR{Op: verbs.OpAtomicFetchAdd, SGList: sge, Remote: word.Remote(0), CompareAdd: 5})
	s.a.succeed()
	s.note("A's result is %d, and B's number is %d", result.Load64(0), word.Load64(0))

	s.next("A posts COMPARE_SWAP: if the number is 42, make it 100. It is, and so it becomes 100. A gets the number from before, and sees " +
		"by it that the swap was done.")
	s.a.post(qa, verbs.SendWR{Op: verbs.OpAtomicCmpSwap, SGList: sge, Remote: word.Remote(0), CompareAdd: 42, Swap: 100})
	s.a.succeed()
	s.note("A's result is %d, and B's number is %d", result.Load64(0), word.Load64(0))

	s.next("The same again. The number is not 42 any more, so nothing is changed. That is no error: the completion is a success, and the " +
		"result tells A.")
	s.a.post(qa, verbs.SendWR{Op: verbs.OpAtomicCmpSwap, SGList: sge, Remote: word.Remote(0), CompareAdd: 42, Swap: 100})
	s.a.succeed()
	s.note("A's result is %d, and B's number is %d", result.Load64(0), word.Load64(0))

	s.next("The address of an atomic must be a multiple of 8. This one is not, by 4 bytes. The call itself refuses it, and there is no WQE, " +
		"no packet and no CQE. (In C, ibv_post_send may let it through; then B's device refuses it: status 9.)")
	wide := s.b.region(16, remote, "")
	s.tellRegion("B's 16 bytes", wide)
	err := qa.PostOneSend(verbs.SendWR{Op: verbs.OpAtomicFetchAdd, SGList: sge, Remote: wide.Remote(4), CompareAdd: 1})
	if err == nil {
		s.must(errors.New("an atomic with an odd address was posted"))
	}
	s.note("Error: %v", err)
}

func sceneLoss(s *stage) {
	qa, qb := s.connect(wiring{})
	s.introduce(qa, qb)
	s.say("Both devices do as cards do: behind a lost packet the receiver takes nothing (go-back-N).")

	const n = 3072
	s.next("A posts two WRITEs of %d bytes. The path MTU is 1024, so they are six packets: PSN 0 to 5. The network loses the second, PSN 1.", n)
	src, dst := s.a.filled(2*n), s.b.region(2*n, remote, "")
	s.lose(s.a, s.b, 2)
	for i := range 2 {
		s.a.post(qa, transfer(verbs.OpRDMAWrite, src, dst, i*n, n))
	}

	s.next("B's device gets PSN 0, and then PSN 2, where it expects PSN 1. It answers with one NAK, \"PSN sequence error\", which has PSN 1 in " +
		"its BTH, and drops all that follows. A's device goes back and sends PSN 1 to 5 again. Of that no program learns anything " +
		"but the time it takes.")
	s.a.succeed()
	s.a.succeed()
	s.tellWritten(src, dst)
	s.counters(qa, "rcvd_seq_err", "retrans_pkts")

	s.next("A posts a WRITE of 100 bytes: one packet, PSN 6. The network loses it. No packet follows, by which B could notice. Only A's timer " +
		"can. A card waits for its timeout: code 14 stands for 4.096 µs × 2^14 = 67 ms, and a device may take up to four times that. This device " +
		"asks earlier: it sends PSN 6 again after 1 ms.")
	s.lose(s.a, s.b, 1)
	s.a.post(qa, transfer(verbs.OpRDMAWrite, src, dst, 0, 100))
	s.a.succeed()

	s.next("The same, but the network loses the ACK. B has the bytes; A cannot know that, and sends PSN 7 again. B's device sees " +
		"a PSN that it has had. It does not carry the WRITE out a second time, and acknowledges it again.")
	s.lose(s.b, s.a, 1)
	s.a.post(qa, transfer(verbs.OpRDMAWrite, src, dst, 0, 100))
	s.a.succeed()

	s.next("B vanishes. A's retry_cnt is %d: after as many timeouts, and one more, A's device gives up. The WRITE completes with an error, and A's QP is in state ERR.", verbs.DefaultRetry.RetryCount)
	s.net.Partition(s.a.addr, s.b.addr)
	s.a.post(qa, transfer(verbs.OpRDMAWrite, src, dst, 0, 100))
	s.a.fail(verbs.WCRetryExceeded)
	s.note("A's QP is in state %v", qa.State())
}

// tellWritten compares the memory of a WRITE's target with its source.
func (s *stage) tellWritten(src, dst *verbs.MR) {
	if !bytes.Equal(src.Bytes(), dst.Bytes()) {
		s.must(fmt.Errorf("what was written is not what is there"))
	}
	s.note("B's memory has all %d bytes, as A has them", dst.Len())
}

// counters notes counters of a QP.
func (s *stage) counters(qp *verbs.QP, names ...string) {
	c := must(qp.Counters())
	for _, name := range names {
		if v, ok := c.Get(name); ok {
			s.note("Counter %s of QP %v: %d", name, qp.QPN(), v)
		}
	}
}

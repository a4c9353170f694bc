package hca_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	_ "github.com/adverb-rdma/adverb/provider/soft" // registers soft_lo
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// carriers are the ways that packets take in the benchmarks of many QPs.
var carriers = []string{"sim", "udp", "shm"}

// twoDevices opens two devices whose packets go by a carrier.
func twoDevices(b *testing.B, carrier string) (x, y *verbs.Device) {
	b.Helper()
	switch carrier {
	case "sim":
		n := rdmatest.New(b)
		return n.Device(), n.Device()
	case "udp":
		b.Setenv("ADVERB_SHM", "0")
	case "shm":
		b.Setenv("ADVERB_SHM", "1")
	}
	open := func(addr string) *verbs.Device {
		d, err := verbs.Open("soft_" + loopback + "@" + addr)
		if err != nil {
			b.Skipf("no loopback interface to measure on: %v", err)
		}
		b.Cleanup(func() { d.Close() })
		return d
	}
	return open("127.0.101.1"), open("127.0.101.2")
}

// side is one end of many connections: all its QPs have one CQ, one SRQ and one region.
type side struct {
	b   *testing.B
	dev *verbs.Device
	gid verbs.GID
	pd  *verbs.PD
	cq  *verbs.CQ
	srq *verbs.SRQ
	mr  *verbs.MR
	qps []*verbs.QP
	wcs []verbs.WC

	underway []int // work requests of each QP that are not done
	recv     []verbs.RecvWR
}

const (
	manyUnderway = 64  // operations at a time, each on the next QP
	manySRQ      = 256 // receives that are posted
)

func newSide(b *testing.B, dev *verbs.Device, memory int) *side {
	b.Helper()
	s := &side{b: b, dev: dev, wcs: make([]verbs.WC, manyUnderway)}
	var err error
	s.pd, err = dev.AllocPD()
	s.must(err)
	s.cq, err = dev.CreateCQ(4 * manySRQ)
	s.must(err)
	s.srq, err = s.pd.CreateSRQ(verbs.SRQAttr{MaxWR: manySRQ, MaxSGE: 1})
	s.must(err)
	s.mr, err = s.pd.AllocMR(memory, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	s.must(err)
	gid, err := dev.GID(1, 0)
	s.must(err)
	s.gid = gid.GID
	s.recv = []verbs.RecvWR{{SGList: []verbs.SGE{s.mr.SGE(0, 64)}}}
	return s
}

func (s *side) must(err error) {
	s.b.Helper()
	if err != nil {
		s.b.Fatal(err)
	}
}

// attr describes the QPs: their queues are short, and their receives are the SRQ's.
func (s *side) attr(depth int) verbs.QPInitAttr {
	return verbs.QPInitAttr{SendCQ: s.cq, RecvCQ: s.cq, SRQ: s.srq, Cap: verbs.QPCap{MaxSendWR: depth, MaxSendSGE: 1}}
}

// connectMany connects n QPs of the two sides, each with room for depth work requests.
func connectMany(x, y *side, n, depth int) {
	x.b.Helper()
	for range n {
		var pair [2]*verbs.QP
		for i, s := range []*side{x, y} {
			qp, err := s.pd.CreateQP(s.attr(depth))
			s.must(err)
			s.must(qp.Init(1, verbs.AccessRemoteWrite))
			pair[i] = qp
		}
		for i, s := range []*side{x, y} {
			peer := []*side{y, x}[i]
			s.must(pair[i].RTR(verbs.Peer{QPN: pair[1-i].QPN(), GID: peer.gid}, verbs.Path{}))
			s.must(pair[i].RTS(0, verbs.DefaultRetry))
			s.qps, s.underway = append(s.qps, pair[i]), append(s.underway, 0)
		}
	}
}

// close gives everything back, so that the next benchmark begins with an empty device.
func (s *side) close() {
	for _, qp := range s.qps {
		s.must(qp.Close())
	}
	s.must(s.mr.Close())
	s.must(s.srq.Close())
	s.must(s.cq.Close())
	s.must(s.pd.Close())
}

// poll takes completions, posts a receive for each that was used, and returns how many sends are done.
func (s *side) poll() (sends int) {
	n, err := s.cq.Poll(s.wcs)
	if err != nil {
		s.b.Fatal(err)
	}
	for i := range s.wcs[:n] {
		wc := &s.wcs[i]
		if err := wc.Err(); err != nil {
			s.b.Fatal(err)
		}
		if wc.Op&verbs.WCRecv == 0 {
			s.underway[wc.ID]--
			sends++
		} else {
			s.receive(1)
		}
	}
	return sends
}

// receive posts n receives.
func (s *side) receive(n int) {
	for range n {
		if _, err := s.srq.PostRecv(s.recv); err != nil {
			s.b.Fatal(err)
		}
	}
}

// memory returns the bytes of the heap in use, and those that the process has mapped, where the system tells.
func memory() (heap, mapped uint64) {
	runtime.GC()
	runtime.GC() // again: pools keep memory for one collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if b, err := os.ReadFile("/proc/self/statm"); err == nil {
		fmt.Sscan(strings.Fields(string(b))[1], &mapped)
		mapped *= uint64(os.Getpagesize())
	}
	return m.HeapAlloc, mapped
}

// BenchmarkManyQPs is the cost of a message of 64 bytes, both ends and the network included, when each goes by
// the next of so many connected QPs. One goroutine posts, and polls both ends.
func BenchmarkManyQPs(b *testing.B) {
	for _, carrier := range carriers {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpSend} {
			for _, n := range []int{1, 100, 1000, 10000} {
				b.Run(fmt.Sprintf("%s/%v/%d", carrier, op, n), func(b *testing.B) { benchMany(b, carrier, op, n) })
			}
		}
	}
}

func benchMany(b *testing.B, carrier string, op verbs.Opcode, n int) {
	dx, dy := twoDevices(b, carrier)
	x, y := newSide(b, dx, 64), newSide(b, dy, 64)
	heap, mapped := memory()
	depth := max(1, manyUnderway/n)
	connectMany(x, y, n, depth)
	heapThen, mappedThen := memory()
	y.receive(manySRQ)
	wr := []verbs.SendWR{{Op: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{x.mr.SGE(0, 64)}}}
	if op == verbs.OpRDMAWrite {
		wr[0].Remote = y.mr.Remote(0)
	}
	posted, done := 0, 0
	post := func() {
		k := posted % n
		for posted-done >= manyUnderway || x.underway[k] == depth {
			y.poll()
			done += x.poll()
		}
		wr[0].ID = uint64(k)
		if _, err := x.qps[k].PostSend(wr); err != nil {
			b.Fatal(err)
		}
		x.underway[k]++
		posted++
	}
	for range n { // each QP has a path and a timer
		post()
	}
	b.ReportAllocs()
	for b.Loop() {
		post()
	}
	for done < posted {
		y.poll()
		done += x.poll()
	}
	if n > 1 {
		b.ReportMetric(float64(heapThen-min(heap, heapThen))/float64(2*n), "heap-B/QP")
		b.ReportMetric(float64(mappedThen-min(mapped, mappedThen))/float64(2*n), "resident-B/QP")
	}
	x.close()
	y.close()
}

package verbs_test

import (
	"math"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// "I seem to be running into a problem after about 30 blocks of 1 GB. I want over 160." Few test
// machines hold so much, and AllocMR gives what they hold only. So these are addresses without memory.
func TestReaderManyGigabytes(t *testing.T) {
	if testing.Short() || math.MaxInt == math.MaxInt32 {
		t.Skip("needs many addresses")
	}
	x, y := pair(t)
	const blocks = 160
	gib := 1 << 30
	src := x.MR(8)
	copy(src.Bytes(), "far away")
	addresses := func(n int) []byte {
		b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
		if err != nil {
			t.Skipf("no addresses for %d bytes more: %v", n, err)
		}
		t.Cleanup(func() { check(t, syscall.Munmap(b)) })
		return b
	}
	var all []*verbs.MR
	for range blocks {
		all = append(all, must(y.PD.RegMR(addresses(gib), rdmatest.Access))(t))
	}
	for i, mr := range all {
		x.Send(write(uint64(i), src.SGE(0, 8), mr.Remote(gib-8)))
		x.Done()
	}
	for i, mr := range all {
		if string(mr.Bytes()[gib-8:]) != "far away" {
			t.Errorf("block %d has %q, want \"far away\"", i, mr.Bytes()[gib-8:])
		}
		check(t, mr.Close())
	}
	one := must(y.PD.RegMR(addresses(8*gib), rdmatest.Access))(t) // or all in one
	x.Send(write(1, src.SGE(0, 8), one.Remote(8*gib-8)))
	x.Done()
	if string(one.Bytes()[8*gib-8:]) != "far away" {
		t.Error("the end of 8 GiB was not written to")
	}
	check(t, one.Close())
}

package whole

import (
	"bytes"

	"github.com/adverb-rdma/adverb/verbs"
)

const (
	guardSize = 64
	untouched = 0xee
)

// region is registered memory between two guards, which nobody may write.
type region struct {
	n      *node
	name   string
	whole  []byte
	mr     *verbs.MR
	frozen []byte // the contents that the memory must keep, once nobody may write the memory any more
	other  []byte // registered in its place, for nobody
}

func newRegion(n *node, name string, size int, access verbs.Access) *region {
	r := &region{n: n, name: name, whole: make([]byte, guardSize+size+guardSize)}
	fill(r.whole[:guardSize], 1)
	fill(r.whole[guardSize+size:], 2)
	var err error
	n.w.regions++
	r.mr, err = n.pd.RegMRIOVA(r.bytes(), uint64(n.w.regions)<<24, access) // addresses of the heap would differ from run to run
	n.w.must(err)
	return r
}

func (r *region) bytes() []byte { return r.whole[guardSize : len(r.whole)-guardSize] }

// freeze takes note that the memory must not change from now on.
func (r *region) freeze() { r.frozen = bytes.Clone(r.bytes()) }

func (r *region) check() {
	var guard [guardSize]byte
	fill(guard[:], 1)
	before := bytes.Equal(guard[:], r.whole[:guardSize])
	fill(guard[:], 2)
	if !before || !bytes.Equal(guard[:], r.whole[len(r.whole)-guardSize:]) {
		r.n.w.failf("%v: memory outside of region %s was written", r.n, r.name)
	}
	if r.other != nil && !bytes.Equal(r.other, content(len(r.other), 3)) {
		r.n.w.failf("%v: what is registered in the place of region %s was written, and nobody has its key", r.n, r.name)
	}
	if r.frozen != nil && !bytes.Equal(r.frozen, r.bytes()) {
		r.n.w.failf("%v: region %s was written after it was closed", r.n, r.name)
	}
}

// close deregisters. Twice is once.
func (r *region) close() {
	if r.mr != nil {
		r.n.w.must(r.mr.Close())
		r.mr = nil
	}
}

// fill writes contents that only this id has.
func fill(b []byte, id uint64) {
	x := id*0x9e3779b97f4a7c15 + 1
	for i := range b {
		if i%8 == 0 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
		}
		b[i] = byte(x >> (8 * (i % 8)))
	}
}

func content(n int, id uint64) []byte {
	b := make([]byte, n)
	fill(b, id)
	return b
}

// area is memory that one end alone writes, with the contents that the memory must have: the effects of the
// complete work requests, in order.
type area struct {
	r    *region
	off  int
	want []byte
}

func newArea(r *region, off, n int) *area {
	return &area{r, off, bytes.Clone(r.bytes()[off : off+n])}
}

func (a *area) bytes() []byte { return a.r.bytes()[a.off : a.off+len(a.want)] }

// fits reports whether got, which was at off, has the contents that the area must have at off, but for bytes that
// later WRITEs may have brought.
func (a *area) fits(got []byte, off int, later []*op) bool {
	if bytes.Equal(got, a.want[off:off+len(got)]) {
		return true
	}
next:
	for i, b := range got {
		if b == a.want[off+i] {
			continue
		}
		for _, o := range later {
			if o.brings(a, off+i, b) {
				continue next
			}
		}
		return false
	}
	return true
}

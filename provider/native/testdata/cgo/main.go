// Command cgo measures a post and a poll of the fake library's device that moves nothing, by cgo. It prints two numbers of
// nanoseconds: of the calls alone, with a work request in C's memory that is made once, and as wrappers make them, with a
// work request and an SGE that C allocates for each post, and frees.
package main

// #include "../fake.c"
// static int post(struct ibv_qp *q, struct ibv_send_wr *wr) {
// 	struct ibv_send_wr *bad;
// 	return q->context->ops.post_send(q, wr, &bad);
// }
// static int poll(struct ibv_cq *c, int n, struct ibv_wc *wc) { return c->context->ops.poll_cq(c, n, wc); }
import "C"

import (
	"fmt"
	"os"
	"time"
	"unsafe"
)

func main() {
	var n C.int
	list := C.ibv_get_device_list(&n)
	ctx := C.ibv_open_device(unsafe.Slice(list, n)[1])
	cq := C.ibv_create_cq(ctx, 64, nil, nil, 0)
	attr := C.struct_ibv_qp_init_attr{send_cq: cq, recv_cq: cq, qp_type: C.RC}
	attr.cap.max_send_wr = 64
	qp := C.ibv_create_qp(C.ibv_alloc_pd(ctx), &attr)
	wr := (*C.struct_ibv_send_wr)(C.calloc(1, C.sizeof_struct_ibv_send_wr))
	wc := (*C.struct_ibv_wc)(C.calloc(1, C.sizeof_struct_ibv_wc))
	fmt.Println(least(func(i uint64) bool {
		wr.wr_id = C.uint64_t(i)
		return C.post(qp, wr) == 0 && C.poll(cq, 1, wc) == 1 && uint64(wc.wr_id) == i
	}), least(func(i uint64) bool {
		wr := (*C.struct_ibv_send_wr)(C.calloc(1, C.sizeof_struct_ibv_send_wr))
		defer C.free(unsafe.Pointer(wr))
		sge := (*C.struct_ibv_sge)(C.calloc(1, C.sizeof_struct_ibv_sge))
		defer C.free(unsafe.Pointer(sge))
		wr.wr_id, wr.sg_list, wr.num_sge = C.uint64_t(i), sge, 1
		sge.addr, sge.length, sge.lkey = 1, 8, 3
		return C.post(qp, wr) == 0 && C.poll(cq, 1, wc) == 1 && uint64(wc.wr_id) == i
	}))
}

// least returns the nanoseconds of a call of f, of the fastest of some rounds.
func least(f func(uint64) bool) float64 {
	const rounds = 1 << 19
	best := time.Duration(1 << 62)
	for range 5 {
		begin := time.Now()
		for i := range uint64(rounds) {
			if !f(i) {
				os.Exit(1)
			}
		}
		best = min(best, time.Since(begin))
	}
	return float64(best.Nanoseconds()) / rounds
}

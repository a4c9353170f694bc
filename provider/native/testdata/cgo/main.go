// Command cgo measures a post and a poll of the fake library's device that moves nothing, as a wrapper by cgo makes them:
// work requests in C's memory, and a call of C for each. It prints the nanoseconds of both.
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
	const rounds = 1 << 20
	least := time.Duration(1 << 62)
	for range 5 {
		begin := time.Now()
		for i := range uint64(rounds) {
			wr.wr_id = C.uint64_t(i)
			if C.post(qp, wr) != 0 || C.poll(cq, 1, wc) != 1 || uint64(wc.wr_id) != i {
				os.Exit(1)
			}
		}
		least = min(least, time.Since(begin))
	}
	fmt.Println(float64(least.Nanoseconds()) / rounds)
}

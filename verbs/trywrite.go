package verbs

// ProviderTryWrite is for implementers of providers: a ProviderQP implements it if it may reach the peer's memory
// without a work request: see QP.TryWrite.
type ProviderTryWrite interface {
	TryWrite(to RemoteAddr, b []byte) int
}

// TryWrite copies b to the peer's memory as an RDMA WRITE does, if that is possible without a work request. It returns
// how many bytes it has copied, from the first on. That is 0 unless the device and its peer share memory: package soft
// does within a host, with an RC QP in RTS and regions of AllocMR. A QP asks for access after some calls that return 0,
// so try each time. What is not copied is no error: post a WRITE for it, whose completion says what may be wrong.
//
//   - b need not be registered, and is the program's again at once. It is read as by copy: if it cannot be, the program
//     ends.
//   - There is no completion. What is posted later arrives later: a SEND or immediate data can tell the peer.
//   - What was posted before may arrive later. It is for the program to know that this does no harm.
//
// libibverbs has nothing like it. The key, its bounds and its rights are checked as for a WRITE.
func (qp *QP) TryWrite(to RemoteAddr, b []byte) int {
	if p, ok := qp.p.(ProviderTryWrite); ok {
		return p.TryWrite(to, b)
	}
	return 0
}

package verbs

// ProviderTryWrite is for implementers of providers: a ProviderQP implements it if it may reach the peer's memory
// without a work request: see QP.TryWrite.
type ProviderTryWrite interface {
	TryWrite(to RemoteAddr, b []byte) int
}

// TryWrite copies b to the peer's memory as an RDMA WRITE does, if that is possible without a work request. It returns
// how many bytes it has copied, from the first on. The number is 0 unless the device and its peer share memory: package
// soft does within a host, with an RC QP in RTS and regions of AllocMR. A QP asks for access after some calls that
// return 0, so try each time. Bytes that are not copied are no error: post a WRITE for them, whose completion has the
// error if there is one.
//
//   - b need not be registered, and is the program's again at once. It is read as by copy: if it cannot be, the program
//     ends.
//   - There is no completion. Work requests that are posted later arrive later: a SEND or immediate data can tell the peer.
//   - Work requests that were posted before may arrive later. The program must know that this does no harm.
//
// libibverbs has nothing like it. The key, its bounds and its rights are checked as for a WRITE.
func (qp *QP) TryWrite(to RemoteAddr, b []byte) int {
	if p, ok := qp.p.(ProviderTryWrite); ok {
		return p.TryWrite(to, b)
	}
	return 0
}

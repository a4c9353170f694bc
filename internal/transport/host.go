package transport

import "github.com/adverb-rdma/adverb/verbs"

// Host is the device around a QP: its memory, receive queue, completion queues and events.
// The QP calls it only from inside its own methods. When it makes a completion that tells of an error,
// QP.State is already the state that the error leads to: ERR, or SQE.
type Host interface {
	// Gather fills dst from the local memory that sg names, from byte off of it on.
	Gather(dst []byte, sg []verbs.SGE, off uint32) *Fault
	// Scatter is the reverse, and needs local write access.
	Scatter(sg []verbs.SGE, off uint32, src []byte) *Fault
	// ScatterRecv is Scatter for the memory of a receive, which may be of another PD.
	ScatterRecv(w *RecvWQE, off uint32, src []byte) *Fault

	// CheckRemote reports whether the peer may use [va, va+length) of the region that key
	// names for need.
	CheckRemote(key verbs.RKey, va uint64, length uint32, need verbs.Access) *Fault
	ReadRemote(dst []byte, key verbs.RKey, va uint64) *Fault
	WriteRemote(key verbs.RKey, va uint64, src []byte) *Fault
	// CompareSwap and FetchAdd work on the 8 bytes at va, in host order, and return what was there.
	CompareSwap(key verbs.RKey, va uint64, compare, swap uint64) (uint64, *Fault)
	FetchAdd(key verbs.RKey, va uint64, add uint64) (uint64, *Fault)

	// Invalidate ends the use of a memory window by its key, for OpLocalInv or for a peer.
	Invalidate(key verbs.RKey) *Fault
	// BindMW carries OpBindMW out.
	BindMW(b *verbs.MWBind) *Fault

	// NextRecv takes the oldest posted receive, or returns nil. It holds until CompleteRecv, or
	// until RESET, which forgets it: one of a shared receive queue is then the Host's to put back.
	NextRecv() *RecvWQE
	// RecvCredits is the number of posted receives, or -1 where the peer shall not count
	// on a number.
	RecvCredits() int
	// CompleteRecv completes the receive that NextRecv gave.
	CompleteRecv(w *RecvWQE, wc verbs.WC, solicited bool)
	// FlushRecv completes all posted receives with WCFlushErr.
	FlushRecv()

	// CompleteSend makes a completion. Once it is polled, the places of the first freed work
	// requests since RESET are free again: see QP.Polled.
	CompleteSend(wc verbs.WC, freed uint64)

	// Established tells that the peer's first request since RTR has come, in whatever state.
	Established()
	// Event raises an asynchronous event of the QP.
	Event(t verbs.EventType)
}

// RecvWQE is a posted receive.
type RecvWQE struct {
	ID     uint64
	SGList []verbs.SGE
	Length uint32 // of SGList
	Index  uint64 // the Host's
}

// Fault is why memory could not be used: a completion status for the side whose memory it is,
// and an account of it.
type Fault struct {
	Status verbs.WCStatus
	Cause  error
}

package verbs

import "time"

// ProviderEnd is for implementers of providers: a ProviderQP implements it if it can tell when and why the QP
// fails: see QP.NotifyError.
type ProviderEnd interface {
	// NotifyError has f called once on a goroutine of its own, after the completions that tell of
	// the failure can be polled. nil takes the wish back.
	NotifyError(f func(cause error))
	// Err returns the cause that NotifyError tells, or nil outside the error state.
	Err() error
}

// NotifyError has f called once, when the QP goes to the error state, with the cause. If the QP is
// in that state already, f is called at once. It is called on a goroutine of its own, which holds no
// locks, after all that was posted has its completion. A nil f takes the wish back; a call that is
// under way goes on. f is not called for a QP that is closed or reset.
//
// errors.Is finds the [WCStatus] in a cause that has one, such as WCRetryExceeded for a peer that has
// vanished. So a program that keeps no work request posted learns of the end as well.
//
// The error is ErrUnsupported for a device that cannot tell.
func (qp *QP) NotifyError(f func(cause error)) error {
	const verb = "wait for an error of"
	if err := qp.check(verb); err != nil {
		return err
	}
	p, ok := qp.p.(ProviderEnd)
	if !ok {
		return wrap(verb, qp.name, Errorf(ErrUnsupported, "the device does not tell when a QP fails"))
	}
	p.NotifyError(f)
	return nil
}

// Err returns why the QP is in the error state: the cause that NotifyError tells. Err is nil for a QP
// in another state, and where the device cannot tell. When a completion of a flushed work request has
// been polled, Err returns the cause of the flush.
func (qp *QP) Err() error {
	if p, ok := qp.p.(ProviderEnd); ok {
		return wrap("use", qp.name, p.Err())
	}
	return nil
}

// ProviderKeepAlive is for implementers of providers: a ProviderQP implements it if it can ask a silent peer for a
// sign of life: see QP.SetKeepAlive.
type ProviderKeepAlive interface {
	// SetKeepAlive is given a period that is not negative, and 0 to turn it off.
	SetKeepAlive(period time.Duration) error
}

// SetKeepAlive makes an RC QP find out by itself that its peer has vanished. When nothing has come
// from the peer for the period, or up to a 64th less, and nothing is on its way that it must
// acknowledge, the device sends an RDMA WRITE of no bytes. The peer's device acknowledges it without its
// program. It takes no place in the send queue and makes no completion. If the retries of the QP run out,
// the QP goes to the error state: with the completion WCRetryExceeded if something was posted meanwhile,
// else with EventQPFatal. Receives are flushed. See [QP.NotifyError] too.
//
// A vanished peer is so noticed within the period and the retries after its last packet. With Retry.Timeout
// 0, which waits without end, it never is. The peer's QP must allow AccessRemoteWrite: one that does not
// refuses the WRITE, which ends the connection. QPs of connection managers allow it.
//
// On iWARP it is the keep-alive of TCP. The period is rounded up to seconds, and is followed by five
// questions, one a second. While the peer has bytes to acknowledge, TCP does not ask, and on Linux has
// patience for the same time (TCP_USER_TIMEOUT): so a peer that is there, but whose process does not read
// for so long, is given up too. On other systems TCP's retries count then. The peer needs no access
// rights for it. A QP for which a period was never set has that of package net.
//
// A period of 0 or less turns keep-alive off, as it is in a new QP. So does RESET. It works in RTS,
// and may be set in any state. The error is ErrUnsupported for a QP of another type, and for a device
// that cannot.
func (qp *QP) SetKeepAlive(period time.Duration) error {
	const verb = "set keep-alive of"
	if err := qp.check(verb); err != nil {
		return err
	}
	p, ok := qp.p.(ProviderKeepAlive)
	switch {
	case qp.typ != QPTypeRC:
		return wrap(verb, qp.name, Errorf(ErrUnsupported, "a %v QP has no acknowledgements to wait for", qp.typ))
	case !ok:
		return wrap(verb, qp.name, Errorf(ErrUnsupported, "the device has none: post an RDMA WRITE of no bytes now and then"))
	}
	return wrap(verb, qp.name, p.SetKeepAlive(max(0, period)))
}

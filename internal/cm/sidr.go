package cm

import (
	"fmt"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// SIDR is one end of an exchange that resolves a service ID to a UD QP. No connection comes of it.
type SIDR struct {
	User any // the caller's

	m       *Machine
	state   sidrState
	path    Path
	id      uint32
	tid     uint64
	service uint64

	interest
	repeater    repeater
	backlogSeat seat // at the listener, until the request is answered
	attempt     seat // likewise, among those of all listeners
	retiree     retiree
}

type sidrState uint8

const (
	sidrOver     sidrState = iota
	sidrSent               // waits for the SIDR_REP
	sidrReceived           // waits for Reply
	sidrReplied            // the SIDR_REQ may come again
)

// SIDRParams are the parameters of [Machine.Resolve].
type SIDRParams struct {
	Service     uint64
	PKey        uint16 // 0 is the default one
	PrivateData []byte // up to 216 bytes
	Timeout     uint8  // code of the time within which the peer is to answer; 0 is DefaultCMTimeout
	MaxRetries  uint8  // 0 is DefaultCMRetries
}

// SIDRReply is the answer to a SIDR_REQ.
type SIDRReply struct {
	Status      wire.SIDRStatus
	QPN         uint32 // 24 bits; sent only if the status is success
	QKey        uint32 // sent only if the status is success
	PrivateData []byte // up to 136 bytes
}

// ID returns the request ID, which the asking side has chosen.
func (s *SIDR) ID() uint32 { return s.id }

// Path returns the way to the peer.
func (s *SIDR) Path() Path { return s.path }

// Service returns the service ID.
func (s *SIDR) Service() uint64 { return s.service }

// Resolve sends a SIDR_REQ along a path. EventSIDRReply or EventUnreachable follows.
func (m *Machine) Resolve(now time.Duration, p Path, params SIDRParams) (*SIDR, error) {
	orDefault(&params.Timeout, DefaultCMTimeout)
	orDefault(&params.MaxRetries, DefaultCMRetries)
	orDefault(&params.PKey, wire.DefaultPKey)
	err := p.check()
	switch {
	case err != nil:
	case len(params.PrivateData) > wire.SIDRREQPrivateDataSize:
		err = tooLong(len(params.PrivateData), wire.SIDRREQPrivateDataSize)
	case params.Timeout > maxTimeoutCode:
		err = fmt.Errorf("%w: a timeout code is over %d", ErrInvalid, maxTimeoutCode)
	}
	var id uint32
	if err == nil {
		id, err = m.newID()
	}
	if err != nil {
		return nil, fmt.Errorf("cm: resolve at %v, service %#016x: %w", p.Remote, params.Service, err)
	}
	s := &SIDR{m: m, id: id, path: p, tid: m.newTID(), state: sidrSent, service: params.Service, interest: interest{delivered: true}}
	s.repeater.timer.rec = s
	m.sidrs[id] = s
	req := &wire.SIDRREQ{RequestID: id, PKey: params.PKey, ServiceID: s.service}
	copy(req.PrivateData[:], params.PrivateData)
	s.send(wire.CMSIDRREQ, req)
	s.repeater.start(m, now, milliseconds(params.Timeout), int(params.MaxRetries), Never)
	return s, nil
}

// send sends a message, and keeps it to be repeated.
func (s *SIDR) send(attr wire.CMAttr, msg body) {
	s.repeater.keep(attr, s.tid, msg)
	s.m.sendMAD(s.path, attr, s.repeater.mad)
}

// expire implements record.
func (s *SIDR) expire(now time.Duration) {
	switch s.state {
	case sidrSent:
		if s.repeater.repeat(s.m, now, s.path) {
			return
		}
		s.emit(Event{Type: EventUnreachable})
	case sidrReceived:
		s.m.countSilent()
		s.displace(now)
		return
	}
	s.forget()
}

// evict implements record.
func (s *SIDR) evict(time.Duration) { s.forget() }

func (s *SIDR) emit(e Event) {
	e.SIDR = s
	s.m.emit(e, s.path)
}

func (s *SIDR) key() remoteKey { return remoteKey{addr: bare(s.path.Remote), n: s.id} }

func (s *SIDR) settle() {
	s.backlogSeat.Leave()
	s.attempt.Leave()
}

func (s *SIDR) forget() {
	s.state = sidrOver
	s.settle()
	s.repeater.stop(s.m)
	if s.m.sidrs[s.id] == s {
		delete(s.m.sidrs, s.id)
	}
	if s.m.sidrReqs[s.key()] == s {
		delete(s.m.sidrReqs, s.key())
	}
	s.retiree.remove(s.m)
}

func (m *Machine) handleSIDRREQ(now time.Duration, msg *message) {
	req, err := wire.DecodeSIDRREQ(msg.data)
	if err != nil || !msg.path.Remote.IsValid() {
		m.stats.Malformed++
		return
	}
	if s := m.sidrReqs[remoteKey{addr: bare(msg.path.Remote), n: req.RequestID}]; s != nil {
		if s.state == sidrReceived || s.tid == msg.tid {
			m.stats.Ignored.add(msg.attr)
			if s.state == sidrReceived {
				m.timers.set(&s.repeater.timer, now+sidrSilence)
			}
			if s.state == sidrReplied {
				m.resend(s.path, wire.CMSIDRREP, s.repeater.mad)
			}
			return
		}
		s.forget() // this is another request with the same ID
	}
	l := m.listener(req.ServiceID, msg.path.Local)
	refuse := func(status wire.SIDRStatus) {
		m.send(msg.path, wire.CMSIDRREP, msg.tid, &wire.SIDRREP{RequestID: req.RequestID, ServiceID: req.ServiceID, Status: status})
	}
	if l == nil {
		refuse(wire.SIDRUnsupported)
		return
	}
	if _, ok := m.hasRoom(msg.path.Remote, l); !ok || !m.hasPKey(req.PKey) {
		refuse(wire.SIDRRejected)
		return
	}
	m.makeRoom(now, msg.path.Remote, l)
	s := &SIDR{m: m, id: req.RequestID, path: msg.path, tid: msg.tid, state: sidrReceived, service: req.ServiceID}
	s.repeater.timer.rec = s
	m.sidrReqs[s.key()] = s
	l.unanswered.Take(&s.backlogSeat, s.path.Remote, s)
	m.attempts.Take(&s.attempt, s.path.Remote, s)
	m.timers.set(&s.repeater.timer, now+sidrSilence)
	s.emit(Event{Type: EventSIDRRequest, Listener: l, Request: RequestParams{Service: s.service, PKey: req.PKey}, PrivateData: clone(req.PrivateData[:])})
}

// Reply answers a SIDR_REQ. No event follows.
func (s *SIDR) Reply(now time.Duration, r SIDRReply) error {
	var err error
	switch {
	case s.state != sidrReceived:
		err = fmt.Errorf("%w: it is answered, or was sent from here", ErrState)
	case r.QPN > max24:
		err = fmt.Errorf("%w: QPN %#x has 24 bits", ErrInvalid, r.QPN)
	case len(r.PrivateData) > wire.SIDRREPPrivateDataSize:
		err = tooLong(len(r.PrivateData), wire.SIDRREPPrivateDataSize)
	}
	if err != nil {
		return fmt.Errorf("cm: reply to SIDR request %#08x: %w", s.id, err)
	}
	s.reply(now, r)
	return nil
}

func (s *SIDR) reply(now time.Duration, r SIDRReply) {
	rep := &wire.SIDRREP{RequestID: s.id, Status: r.Status, ServiceID: s.service}
	if r.Status == wire.SIDRSuccess {
		rep.QPN, rep.QKey = r.QPN, r.QKey
	}
	copy(rep.PrivateData[:], r.PrivateData)
	s.send(wire.CMSIDRREP, rep)
	s.settle()
	s.state = sidrReplied
	s.m.timers.set(&s.repeater.timer, now+sidrLinger)
	s.retiree.retire(s.m, now, s)
}

// Close gives the exchange up. It rejects a request. There are no further events of the exchange.
func (s *SIDR) Close(now time.Duration) {
	if s.closed {
		return
	}
	s.close()
	switch s.state {
	case sidrSent:
		s.forget()
	case sidrReceived:
		s.reply(now, SIDRReply{Status: wire.SIDRRejected})
	}
}

func (m *Machine) handleSIDRREP(now time.Duration, msg *message) {
	rep, err := wire.DecodeSIDRREP(msg.data)
	if err != nil {
		m.stats.Malformed++
		return
	}
	s := m.sidrs[rep.RequestID]
	switch {
	case s == nil:
		m.count(msg, unknown)
		return
	case !sameAddr(s.path.Remote, msg.path.Remote):
		m.count(msg, foreign)
		return
	}
	s.emit(Event{Type: EventSIDRReply, Status: rep.Status, QPN: rep.QPN, QKey: rep.QKey,
		ARI: clone(rep.AddInfo[:min(int(rep.AddInfoLen), len(rep.AddInfo))]), PrivateData: clone(rep.PrivateData[:])})
	s.forget()
}

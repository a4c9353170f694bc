package ucma

import (
	"context"
	"slices"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// event is one that the program has not read.
type event struct {
	of    *cmID  // by whose name it is counted; of a request, the listener
	group *group // or nil
	child *cmID  // of a request, the new ID
	resp  uapi.CMEventResp
}

// pump takes the events of rdmacm.
func (m *Manager) pump(ctx context.Context) {
	for {
		ev, err := m.ch.Next(ctx)
		if err != nil {
			return
		}
		if ev.Type == rdmacm.EventConnectRequest {
			m.pin(ev.ID)
		}
		m.mu.Lock()
		ids := m.route(&ev)
		m.mu.Unlock()
		closeAll(ids)
	}
}

// route puts an event into the queue of the file that the ID has. It returns IDs to close. The caller holds m.mu.
func (m *Manager) route(ev *rdmacm.Event) []*rdmacm.ID {
	if ev.Type == rdmacm.EventConnectRequest {
		return m.request(ev)
	}
	c := m.of[ev.ID]
	if c == nil { // it was destroyed meanwhile, or pins a device
		return m.unpin(ev)
	}
	switch ev.Type {
	case rdmacm.EventAddrChange:
		return nil // Linux knows it of bonds alone, and programs end for it
	case rdmacm.EventConnectResponse:
		c.answers(ev.Param.ResponderResources)
	case rdmacm.EventEstablished:
		c.phase.establish()
	case rdmacm.EventRejected, rdmacm.EventUnreachable, rdmacm.EventDisconnected, rdmacm.EventConnectError:
		c.phase.end()
	case rdmacm.EventDeviceRemoval:
		c.phase.gone = true
	}
	if c.request != nil { // the peer has given up before the program has heard of it
		if c.phase.over || c.phase.gone {
			return m.withdraw(c)
		}
		return nil
	}
	e := &event{of: c, group: m.groupOf(c, ev), resp: c.response(ev)}
	switch {
	case e.group != nil:
		e.resp.UID, e.resp.ID = e.group.uid, e.group.number
	case ev.Type == rdmacm.EventMulticastJoin: // the program has left it meanwhile
		return nil
	}
	if c.uid != 0 { // else it is a request's, and not accepted: the program has no name for it
		c.file.push(e)
	}
	if c.phase.gone {
		return []*rdmacm.ID{c.v} // all but DESTROY_ID fails from now on
	}
	return nil
}

// unpin gives back a device that has gone.
func (m *Manager) unpin(ev *rdmacm.Event) []*rdmacm.ID {
	if ev.Type != rdmacm.EventDeviceRemoval {
		return nil
	}
	for dev, id := range m.pins {
		if id == ev.ID {
			delete(m.pins, dev)
			return []*rdmacm.ID{id}
		}
	}
	return nil
}

// request makes an ID of a peer's request. The caller holds m.mu.
func (m *Manager) request(ev *rdmacm.Event) []*rdmacm.ID {
	l := m.of[ev.ListenID]
	if l == nil || ev.ID.QPType() != l.qpType && !l.anyType {
		return []*rdmacm.ID{ev.ID} // which says no
	}
	child := &cmID{v: ev.ID, ps: l.ps, qpType: ev.ID.QPType(), file: l.file, ib: l.ib, phase: phase{routed: true, begun: true}, responderResources: ev.Param.ResponderResources}
	if m.enter(child) != nil {
		return []*rdmacm.ID{ev.ID}
	}
	e := &event{of: l, child: child, resp: child.response(ev)}
	e.resp.UID = l.uid
	child.waitsFor(e)
	l.file.push(e)
	return nil
}

// push adds an event. The caller holds m.mu.
func (f *File) push(ev *event) {
	f.queue = append(f.queue, ev)
	f.changed()
}

// withdraw forgets a request that the program has not read. The caller holds m.mu.
func (m *Manager) withdraw(c *cmID) []*rdmacm.ID {
	c.file.dropEvents(func(ev *event) bool { return ev == c.request })
	return m.forget(c)
}

// dropEvents removes events that the program has not read, and returns them. The caller holds m.mu.
func (f *File) dropEvents(which func(*event) bool) (dropped []*event) {
	f.queue = slices.DeleteFunc(f.queue, func(ev *event) bool {
		if which(ev) {
			dropped = append(dropped, ev)
			return true
		}
		return false
	})
	f.changed()
	return dropped
}

// response returns an event as the program is told it.
func (c *cmID) response(ev *rdmacm.Event) uapi.CMEventResp {
	resp := uapi.CMEventResp{UID: c.uid, ID: c.number, Event: uint32(ev.Type), Status: uint32(int32(ev.Status))}
	if c.qpType == verbs.QPTypeUD {
		p := uapi.CMUDParam{QPNum: uint32(ev.UD.QPN), QKey: uint32(ev.UD.QKey), AHAttr: ahAttr(&ev.UD.AH)}
		p.PrivateDataLen = uint8(copy(p.PrivateData[:255], ev.UD.PrivateData))
		resp.PutParam(p)
		return resp
	}
	p := uapi.CMConnParam{QPNum: uint32(ev.Param.QPN), SRQ: bit(ev.Param.SRQ), ResponderResources: ev.Param.ResponderResources,
		InitiatorDepth: ev.Param.InitiatorDepth, FlowControl: bit(ev.Param.FlowControl), RetryCount: ev.Param.RetryCount, RNRRetryCount: ev.Param.RNRRetryCount}
	p.PrivateDataLen = uint8(copy(p.PrivateData[:255], ev.Param.PrivateData))
	resp.PutParam(p)
	return resp
}

func bit(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// ahAttr returns a path as the program has it.
func ahAttr(a *verbs.AHAttr) uapi.AHAttr {
	u := uapi.AHAttr{DLID: a.DLID, SL: a.SL, SrcPathBits: a.SrcPathBits, StaticRate: uint8(a.StaticRate), PortNum: uint8(a.Port)}
	if a.IsGlobal() {
		u.IsGlobal = 1
		u.GRH = uapi.GlobalRoute{DGID: a.DGID, FlowLabel: a.FlowLabel, SGIDIndex: uint8(a.SGIDIndex), HopLimit: a.HopLimit, TrafficClass: a.TrafficClass}
	}
	return u
}

// getEvent hands out an event. The program gets it by WriteMemory, which may take long, so without the lock.
func (f *File) getEvent(k *call) error {
	var in uapi.CMGetEventArg
	if err := k.needs(uapi.CMEventRespLeast); err != nil {
		return err
	}
	if err := k.in(&in); err != nil {
		return err
	}
	ev := f.next()
	if ev == nil {
		return ErrWouldBlock
	}
	if err := k.out(in.Response, ev.resp); err != nil {
		for _, id := range f.giveBack(ev) {
			id.Close()
		}
		return err
	}
	return nil
}

// next takes the event that has waited longest, or nil.
func (f *File) next() *event {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if len(f.queue) == 0 {
		return nil
	}
	ev := f.queue[0]
	f.queue[0] = nil
	f.queue = f.queue[1:]
	f.changed()
	ev.of.reported++
	if ev.group != nil {
		ev.group.reported++
	}
	if ev.child != nil {
		ev.child.waitsFor(nil)
	}
	return ev
}

// giveBack undoes next. It returns the ID of a request whose listener was destroyed meanwhile.
func (f *File) giveBack(ev *event) []*rdmacm.ID {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.m.ids.get(ev.of.number) != ev.of {
		if ev.child != nil {
			return f.m.forget(ev.child)
		}
		return nil
	}
	ev.of.reported--
	if ev.group != nil {
		ev.group.reported--
	}
	if ev.child != nil {
		if ev.child.phase.over || ev.child.phase.gone || f.m.ids.get(ev.child.number) != ev.child {
			return f.m.forget(ev.child)
		}
		ev.child.waitsFor(ev)
	}
	to := ev.of.file
	to.queue = slices.Insert(to.queue, 0, ev)
	to.changed()
	return nil
}

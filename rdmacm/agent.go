package rdmacm

import (
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// What this implementation chose.
const (
	// qp1Recvs is how many MADs may arrive while the agent is busy, and qp1Sends how many may be on
	// their way out. More are lost, and repeated by who sent them.
	qp1Recvs = 1024
	qp1Sends = 1024
	qp1Batch = 64

	// maxAHs bounds the address handles that are kept.
	maxAHs = 1024

	// lingerTime is how long an agent without IDs waits for the answers to their disconnects.
	lingerTime = 250 * time.Millisecond
)

// recvSize is the room of a MAD and what stands before it.
const recvSize = verbs.GRHSize + wire.MADSize

// agent is the connection manager of a device: it takes MADs from QP1 to the protocol machine and
// back, and the machine's events to the IDs.
//
//	QP1 --> receive --> machine --> dispatch --> ID --> EventChannel
//	QP1 <-- flush   <--     ^------------------- a call of an ID's method
//
// One goroutine receives, keeps time and dispatches. Locks are taken in the order ID.mu, agent.mu.
type agent struct {
	dev    *verbs.Device
	gsi    *verbs.GSI
	limits limits
	start  time.Time

	qpPD           *verbs.PD // QP1's
	recvCQ, sendCQ *verbs.CQ
	qp             *verbs.QP
	mr             *verbs.MR

	mu      sync.Mutex
	machine *cm.Machine
	ahs     map[cm.Path]*verbs.AH
	unsent  atomic.Uint64 // MADs that found no way out
	reaped  [qp1Batch]verbs.WC
	wr      [1]verbs.SendWR
	pd      *verbs.PD // the default of IDs, made on demand
	ids     map[*ID]struct{}

	wake   chan struct{} // the machine has events or another timeout
	done   chan struct{}
	ended  chan struct{} // run has returned
	closed chan struct{} // nothing is left of it

	refs int // guarded by agents.mu; 0 while it ends
}

// agents are those of this process.
var agents = struct {
	mu  sync.Mutex
	of  map[*verbs.Device]*agent
	pds map[*verbs.Device]*verbs.PD // defaults that outlived their agent: programs have objects in them
}{of: map[*verbs.Device]*agent{}, pds: map[*verbs.Device]*verbs.PD{}}

// acquireAgent returns the device's agent. Each call needs a release.
func acquireAgent(dev *verbs.Device) (*agent, error) {
	agents.mu.Lock()
	for a := agents.of[dev]; a != nil; a = agents.of[dev] {
		if a.refs > 0 {
			a.refs++
			agents.mu.Unlock()
			return a, nil
		}
		agents.mu.Unlock()
		<-a.closed
		agents.mu.Lock()
	}
	defer agents.mu.Unlock()
	a, err := newAgent(dev)
	if err != nil {
		return nil, err
	}
	a.refs = 1
	agents.of[dev] = a
	a.pd = agents.pds[dev] // so that memory registered for one connection serves the next
	delete(agents.pds, dev)
	return a, nil
}

// retain is acquireAgent for an agent that is known, and false when it is ending.
func (a *agent) retain() bool {
	agents.mu.Lock()
	defer agents.mu.Unlock()
	if a.refs == 0 {
		return false
	}
	a.refs++
	return true
}

// release gives an agent back, and ends it after the last one.
func (a *agent) release() {
	agents.mu.Lock()
	a.refs--
	last := a.refs == 0
	agents.mu.Unlock()
	if !last {
		return
	}
	a.linger()
	close(a.done)
	<-a.ended
	a.closeObjects()
	agents.mu.Lock()
	if a.pd != nil && a.pd.Close() != nil {
		agents.pds[a.dev] = a.pd
	}
	delete(agents.of, a.dev)
	agents.mu.Unlock()
	close(a.closed)
}

// newAgent brings QP1 of a device into service.
func newAgent(dev *verbs.Device) (_ *agent, err error) {
	attr, err := dev.Query()
	if err != nil {
		return nil, err
	}
	a := &agent{
		dev: dev, limits: limitsOf(&attr), start: time.Now(),
		ahs: map[cm.Path]*verbs.AH{}, ids: map[*ID]struct{}{},
		wake: make(chan struct{}, 1), done: make(chan struct{}), ended: make(chan struct{}), closed: make(chan struct{}),
	}
	defer func() {
		if err != nil {
			a.closeObjects()
		}
	}()
	if a.gsi, err = dev.GSI(); err != nil {
		return nil, err
	}
	if a.qpPD, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	if a.recvCQ, err = dev.CreateCQ(qp1Recvs); err != nil {
		return nil, err
	}
	if a.sendCQ, err = dev.CreateCQ(qp1Sends); err != nil {
		return nil, err
	}
	if a.mr, err = a.qpPD.AllocMR(qp1Recvs*recvSize, verbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	if a.qp, err = a.gsi.CreateQP(a.qpPD, verbs.QPInitAttr{
		SendCQ: a.sendCQ, RecvCQ: a.recvCQ, SignalAll: true,
		Cap: verbs.QPCap{MaxSendWR: qp1Sends, MaxRecvWR: qp1Recvs, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: wire.MADSize},
	}); err != nil {
		return nil, err
	}
	if err = serveUD(a.qp, wire.GSIQKey); err != nil {
		return nil, err
	}
	wrs := make([]verbs.RecvWR, qp1Recvs)
	for i := range wrs {
		wrs[i] = a.recvWR(uint64(i))
	}
	if _, err = a.qp.PostRecv(wrs); err != nil {
		return nil, err
	}
	base, bits, err := a.gsi.CommIDs()
	if err != nil {
		return nil, err
	}
	a.machine = cm.New(cm.Config{
		GUID: binary.BigEndian.Uint64(attr.NodeGUID[:]), IDBase: base, IDBits: bits, Seed: random64(), ACKDelay: attr.LocalCAAckDelay,
	})
	go a.run()
	return a, nil
}

// serveUD takes a UD QP from RESET to RTS.
func serveUD(qp *verbs.QP, qkey verbs.QKey) error {
	if err := qp.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: devicePort, QKey: qkey},
		verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey); err != nil {
		return err
	}
	if err := qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR}, verbs.MaskState); err != nil {
		return err
	}
	return qp.RTS(0, verbs.Retry{})
}

func random64() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint64(b[:])
}

func (a *agent) recvWR(i uint64) verbs.RecvWR {
	return verbs.RecvWR{ID: i, SGList: []verbs.SGE{a.mr.SGE(int(i)*recvSize, recvSize)}}
}

// now is the time that the machine runs by.
func (a *agent) now() time.Duration { return time.Since(a.start) }

// do calls f with the machine, and sends what comes of it.
func (a *agent) do(f func(m *cm.Machine, now time.Duration)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f(a.machine, a.now())
	a.flush()
	signal(a.wake)
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// flush sends what the machine has to send. The caller holds a.mu.
func (a *agent) flush() {
	for {
		path, mad, ok := a.machine.Transmit()
		if !ok {
			return
		}
		ah, err := a.ah(path)
		if err != nil {
			a.unsent.Add(1)
			continue
		}
		a.wr[0] = verbs.SendWR{
			Op: verbs.OpSend, Flags: verbs.SendInline, InlineData: mad,
			AH: ah, RemoteQPN: wire.GSIQPN, RemoteQKey: wire.GSIQKey,
		}
		a.sendCQ.Poll(a.reaped[:])
		if _, err := a.qp.PostSend(a.wr[:]); err != nil {
			a.unsent.Add(1)
		}
	}
}

// ah returns the address handle of a path. The caller holds a.mu.
func (a *agent) ah(path cm.Path) (*verbs.AH, error) {
	if ah := a.ahs[path]; ah != nil {
		return ah, nil
	}
	sgid, err := a.gidIndex(path.Local)
	if err != nil {
		return nil, err
	}
	ah, err := a.qpPD.CreateAH(ahAttr(path, sgid))
	if err != nil {
		return nil, err
	}
	if len(a.ahs) >= maxAHs {
		a.forgetAHs()
	}
	a.ahs[path] = ah
	return ah, nil
}

func (a *agent) forgetAHs() {
	for p, ah := range a.ahs {
		ah.Close() // messages that are posted with it still go out
		delete(a.ahs, p)
	}
}

// ahAttr says to the verbs where a path leads.
func ahAttr(path cm.Path, sgid int) verbs.AHAttr {
	return verbs.AHAttr{DGID: verbs.GIDFromAddr(path.Remote), SGIDIndex: sgid, TrafficClass: path.TrafficClass, HopLimit: hopLimit, Port: devicePort}
}

const (
	devicePort = 1
	hopLimit   = 64
)

func (a *agent) gidIndex(addr netip.Addr) (int, error) { return gidIndex(a.dev, addr) }

// gidIndex returns where an address stands in a device's GID table.
func gidIndex(dev *verbs.Device, addr netip.Addr) (int, error) {
	attr, err := dev.QueryPort(devicePort)
	if err != nil {
		return 0, err
	}
	gid := verbs.GIDFromAddr(addr)
	for i := range attr.GIDTableLen {
		if e, err := dev.Provider().GID(devicePort, i); err == nil && e.GID == gid && e.Type == verbs.GIDTypeRoCEv2 {
			return i, nil
		}
	}
	return 0, verbs.Errorf(ErrNoDevice, "device %s has no RoCE v2 GID of %v", dev.Name(), addr)
}

// run is the agent's goroutine.
func (a *agent) run() {
	defer close(a.ended)
	timer := time.NewTimer(0)
	defer timer.Stop()
	wcs := make([]verbs.WC, qp1Batch)
	for {
		n, err := a.receive(wcs)
		a.dispatch()
		if err != nil {
			a.deviceGone(err)
			return
		}
		if n > 0 {
			continue
		}
		if err := a.recvCQ.Notify(false); err != nil {
			a.deviceGone(err)
			return
		}
		if n, _ := a.receive(wcs); n > 0 { // came before the arming
			a.dispatch()
			continue
		}
		if next := a.nextTimeout(); next != cm.Never {
			timer.Reset(max(0, next-a.now()))
		} else {
			timer.Stop()
		}
		select {
		case <-a.recvCQ.Events():
		case <-a.wake:
		case <-timer.C:
			a.do(func(m *cm.Machine, now time.Duration) { m.HandleTimeout(now) })
		case <-a.gsi.Gone():
			a.deviceGone(verbs.Errorf(ErrNoDevice, "device %s is gone", a.dev.Name()))
			return
		case <-a.done:
			return
		}
	}
}

func (a *agent) nextTimeout() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.machine.NextTimeout()
}

// receive hands the MADs that have arrived to the machine.
func (a *agent) receive(wcs []verbs.WC) (int, error) {
	n, err := a.recvCQ.Poll(wcs)
	if n == 0 {
		return 0, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range wcs[:n] {
		wc := &wcs[i]
		if wc.Status != verbs.WCSuccess {
			return n, wc.Err()
		}
		b := a.mr.Bytes()[wc.ID*recvSize:][:recvSize]
		if wc.ByteLen == recvSize { // the only size of MADs
			a.machine.Handle(a.now(), pathOf(b), b[verbs.GRHSize:])
		}
		if _, err := a.qp.PostRecv([]verbs.RecvWR{a.recvWR(wc.ID)}); err != nil {
			return n, err
		}
	}
	a.flush()
	return n, nil
}

// pathOf reads from a GRH the way back.
func pathOf(grh []byte) cm.Path {
	if ip := grh[verbs.GRHSize-20:]; ip[0] == 0x45 && grh[0]>>4 != 6 {
		return cm.Path{Local: netip.AddrFrom4([4]byte(ip[16:])), Remote: netip.AddrFrom4([4]byte(ip[12:])), TrafficClass: ip[1]}
	}
	return cm.Path{
		Local:  netip.AddrFrom16([16]byte(grh[24:])).Unmap(),
		Remote: netip.AddrFrom16([16]byte(grh[8:])).Unmap(), TrafficClass: grh[0]<<4 | grh[1]>>4,
	}
}

// dispatch tells the IDs what the machine has to tell.
func (a *agent) dispatch() {
	for {
		a.mu.Lock()
		ev, ok := a.machine.Event()
		var user any
		if ok {
			user = userOf(&ev)
		}
		a.mu.Unlock()
		if !ok {
			return
		}
		switch ev.Type {
		case cm.EventRequest, cm.EventSIDRRequest:
			user.(*ID).requested(a, &ev)
		default:
			if id, ok := user.(*ID); ok {
				id.handle(&ev)
			}
		}
	}
}

// userOf returns the ID that an event is for; of a request the listening one.
func userOf(ev *cm.Event) any {
	switch {
	case ev.Listener != nil:
		return ev.Listener.User
	case ev.Conn != nil:
		return ev.Conn.User
	case ev.SIDR != nil:
		return ev.SIDR.User
	}
	return nil
}

// add and remove keep the IDs that a device's failure concerns.
func (a *agent) add(id *ID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ids[id] = struct{}{}
}

func (a *agent) remove(id *ID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.ids, id)
}

// deviceGone tells the IDs that QP1 has failed: somebody has closed the device.
func (a *agent) deviceGone(err error) {
	select {
	case <-a.done: // by release
		return
	default:
	}
	forget(a.dev)
	a.mu.Lock()
	ids := make([]*ID, 0, len(a.ids))
	for id := range a.ids {
		ids = append(ids, id)
	}
	a.mu.Unlock()
	for _, id := range ids {
		id.deviceGone(err)
	}
}

// defaultPD returns the PD of IDs that were given none.
func (a *agent) defaultPD() (*verbs.PD, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pd == nil {
		pd, err := a.dev.AllocPD()
		if err != nil {
			return nil, err
		}
		a.pd = pd
	}
	return a.pd, nil
}

// linger waits a moment for peers to answer the disconnects of closed IDs: after that nobody
// repeats them.
func (a *agent) linger() {
	limit := time.NewTimer(lingerTime)
	defer limit.Stop()
	tick := time.NewTicker(lingerTime / 50)
	defer tick.Stop()
	for a.awaitsAnswers() {
		select {
		case <-tick.C:
		case <-a.ended:
			return
		case <-limit.C:
			return
		}
	}
}

func (a *agent) awaitsAnswers() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.machine.Outstanding() > 0
}

func (a *agent) closeObjects() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forgetAHs()
	if a.qp != nil {
		a.qp.Close()
	}
	if a.mr != nil {
		a.mr.Close()
	}
	for _, cq := range []*verbs.CQ{a.recvCQ, a.sendCQ} {
		if cq != nil {
			cq.Close()
		}
	}
	if a.qpPD != nil {
		a.qpPD.Close()
	}
}

package cm

import (
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// peerTimes is a REQ whose sender names the longest times and the most retries that there are.
func (w *world) peerTimes() *wire.REQ {
	req := w.req(1, 0x11)
	req.LocalCMTimeout, req.RemoteCMTimeout, req.MaxCMRetries, req.Primary.ACKTimeout = 31, 31, 15, 31
	return req
}

// requestOf goes as far as the request of a REQ, which b has and has not answered.
func (w *world) requestOf(req *wire.REQ) *Conn {
	w.t.Helper()
	w.b.listen(0)
	w.lose = func(string, []byte) bool { return true } // the times that the hosts themselves name
	w.b.inject(w.a.addr, 1, wire.CMREQ, req)
	return w.b.want(EventRequest).Conn
}

// wantWithin checks that b gets an event after a time of at least lo and at most hi.
func (w *world) wantWithin(typ EventType, lo, hi time.Duration) {
	w.t.Helper()
	w.advance(lo)
	w.b.wantNone()
	w.advance(hi - lo)
	w.b.want(typ)
}

// A peer cannot make this side wait longer than 16 s for one answer, whatever its REQ says.
func TestResponseTimeIsBounded(t *testing.T) {
	w := newWorld(t)
	req := w.peerTimes()
	req.MaxCMRetries = 0
	d := w.requestOf(req)
	w.ok(d.Accept(w.now, testParams(0x22)))
	w.wantWithin(EventUnreachable, 16384*time.Millisecond-1, 16384*time.Millisecond)
}

// Neither the times that a peer names nor its MRAs hold a connection that waits for its RTU for
// longer than 3 minutes. An MRA behind an ACK timeout of code 31 held it for 38 hours.
func TestREPLifeIsBounded(t *testing.T) {
	w := newWorld(t)
	d := w.requestOf(w.peerTimes())
	w.ok(d.Accept(w.now, testParams(0x22)))
	w.b.inject(w.a.addr, 1, wire.CMMRA, &wire.MRA{LocalCommID: 1, RemoteCommID: d.ID(), Message: wire.CMMessageREP, ServiceTimeout: 31})
	w.wantState(d, StateMRAREPRcvd)
	w.wantWithin(EventUnreachable, 3*time.Minute-1, 3*time.Minute)
	w.advance(150*time.Second + 8*16384*time.Millisecond)
	w.wantEmpty()
}

// The same holds for a connection that waits for a DREP.
func TestDREQLifeIsBounded(t *testing.T) {
	w := newWorld(t)
	d := w.requestOf(w.peerTimes())
	w.ok(d.Accept(w.now, testParams(0x22)))
	w.ok(d.Established(w.now))
	w.b.want(EventEstablished)
	w.ok(d.Disconnect(w.now, nil))
	w.wantWithin(EventDisconnected, 3*time.Minute-1, 3*time.Minute)
}

// One MRA delays by no more than 4 minutes, and all of them by no more than 20.
func TestMRAIsBounded(t *testing.T) {
	for _, test := range []struct {
		retries uint8
		longest time.Duration
	}{
		{1, 2 * (262144*time.Millisecond + 512*time.Millisecond)},
		{15, 16*1536*time.Millisecond + 20*time.Minute},
	} {
		w := newWorld(t)
		w.lossOf("a REQ")
		c, err := w.a.Connect(w.now, w.a.path(w.b), ConnectParams{Service: testService, Params: testParams(0x11), MTU: 3, MaxCMRetries: test.retries})
		w.ok(err)
		w.a.inject(w.b.addr, 1, wire.CMMRA, &wire.MRA{LocalCommID: 7, RemoteCommID: c.ID(), Message: wire.CMMessageREQ, ServiceTimeout: 31})
		w.wantState(c, StateMRAREQRcvd)
		w.advance(test.longest - 1)
		w.a.wantNone()
		w.advance(1)
		w.a.want(EventUnreachable)
	}
}

// A connection that is over stays in time-wait for no longer than 33 s.
func TestTimeWaitIsBounded(t *testing.T) {
	w := newWorld(t)
	d := w.requestOf(w.peerTimes())
	w.ok(d.Accept(w.now, testParams(0x22)))
	w.ok(d.Established(w.now))
	w.b.want(EventEstablished)
	w.b.inject(w.a.addr, 1, wire.CMDREQ, &wire.DREQ{LocalCommID: 1, RemoteCommID: d.ID(), RemoteQPN: 0x22})
	w.b.want(EventDisconnected)
	w.wantWithin(EventTimeWaitExit, 32768*time.Millisecond-1, 32768*time.Millisecond)
	w.wantEmpty()
}

// A request that was rejected is remembered for no longer than 150 s.
func TestRefusalIsBounded(t *testing.T) {
	w := newWorld(t)
	d := w.requestOf(w.peerTimes())
	w.ok(d.Reject(w.now, wire.RejConsumerDefined, nil, nil))
	w.advance(150*time.Second - 1)
	w.wantState(d, StateRejected)
	w.advance(1)
	w.wantEmpty()
}

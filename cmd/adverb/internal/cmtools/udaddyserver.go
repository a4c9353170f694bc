package cmtools

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// Anybody can ask for a QP by one datagram, and never send to it. So a client of a server has its place among -c for good
// once a message has come, and genuine ones send at once. Before, a client of another host may take the place, and after
// silentTime any.
const silentTime = 3 * time.Second

func (u *udaddy) serve() error {
	l, err := u.listen(&u.flags)
	if err != nil {
		return err
	}
	defer func() { u.inv.Explain(l.Close()) }()
	// After a failure the C program goes on with the clients that are connected, and reports success.
	failed := u.events(&u.connectsLeft, u.handle)
	if u.inv.Ctx.Err() != nil {
		return failed
	}
	if u.count > 0 {
		if err := u.serverTransfer(); err != nil {
			return err
		}
	}
	if failed == nil {
		failed = u.surplus
	}
	return failed
}

// serverTransfer receives the messages, and then sends the answers.
func (u *udaddy) serverTransfer() error {
	u.inv.Printf("receiving data transfers\n")
	if err := u.receiveAll(); err != nil {
		return err
	}
	u.inv.Printf("sending replies\n")
	for i := range u.nodes {
		if err := u.postSends(&u.nodes[i], verbs.SendSignaled, 0); err != nil {
			return err
		}
	}
	if err := u.collectAll(); err != nil {
		return err
	}
	u.inv.Printf("data transfers complete\n")
	return nil
}

// receiveAll waits for -C messages of each client. A server learns from the first one where its client is.
func (u *udaddy) receiveAll() error {
	var asked asked
	ctx, stop := u.watch(asked.add)
	defer func() {
		stop()
		for _, ev := range asked.take() {
			u.turnAway(ev.ID)
		}
	}()
	for i := range u.nodes {
		n := &u.nodes[i]
		for n.connected && n.received < u.count {
			turn, done := asked.turn(ctx)
			k, err := u.poll(turn, n.recvCQ)
			done()
			if err == nil {
				err = u.came(n, k)
			}
			if err != nil && !errors.Is(err, errAsked) {
				return err
			}
			for _, ev := range asked.take() {
				if err := u.takeIn(ev.ID); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// came takes note of k messages of a client.
func (u *udaddy) came(n *node, k int) error {
	n.received += k
	if n.ah == nil && k > 0 {
		return u.answer(n, &u.wcs[0])
	}
	return nil
}

// takeIn gives a client the place of one that has sent nothing, or refuses it.
func (u *udaddy) takeIn(id *rdmacm.ID) error {
	for i := range u.nodes { // of some, messages may have come by now
		n := &u.nodes[i]
		if !n.connected || n.received > 0 {
			continue
		}
		k, err := n.recvCQ.Poll(u.wcs[:])
		if err != nil {
			return u.complain(cm.StatusFailed, err, "%s: failed polling CQ: %d", u.prog, cm.StatusFailed)
		}
		if k > 0 {
			if err := u.came(n, k); err != nil {
				return err
			}
		}
	}
	loser := u.silentFor(id.RemoteAddr().Addr())
	if loser == nil {
		u.turnAway(id)
		return nil
	}
	u.inv.Explain(fmt.Errorf("the client at %v has asked and sent nothing: the one at %v gets its place", loser.id.RemoteAddr(), id.RemoteAddr()))
	u.inv.Explain(loser.close())
	*loser = node{}
	if err := u.requested(id); err != nil {
		u.surplus = err
	}
	return nil
}

// silentFor returns the client that gives its place to one at an address: of those that may have to, the one that has been
// silent for longest. It returns nil if there is none.
func (u *udaddy) silentFor(addr netip.Addr) (longest *node) {
	for i := range u.nodes {
		n := &u.nodes[i]
		if !n.connected || n.received > 0 || n.id.RemoteAddr().Addr() == addr && time.Since(n.since) < silentTime {
			continue
		}
		if longest == nil || n.since.Before(longest.since) {
			longest = n
		}
	}
	return longest
}

// turnAway refuses a client beyond -c.
func (u *udaddy) turnAway(id *rdmacm.ID) {
	u.inv.Explain(cm.ErrTooMany)
	u.surplus = u.refuse(id, cm.Failed(cm.StatusNoMemory))
	u.inv.Explain(id.Close())
}

func (u *udaddy) requested(id *rdmacm.ID) error {
	n := u.admit(id)
	if n == nil {
		return nil
	}
	u.connectsLeft--
	err := u.prepare(n)
	if err == nil {
		if aerr := id.Accept(&rdmacm.ConnParam{}); aerr != nil {
			err = u.perror(aerr, "failure accepting")
		}
	}
	if err != nil {
		return u.refuse(id, err)
	}
	n.connected, n.since = true, time.Now()
	return nil
}

// asked are the requests that come while the server waits for messages.
type asked struct {
	mu     sync.Mutex
	events []rdmacm.Event
	wake   context.CancelCauseFunc // of the wait
}

var errAsked = errors.New("another client asks")

func (a *asked) add(ev rdmacm.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events = append(a.events, ev)
	if a.wake != nil {
		a.wake(errAsked)
	}
}

// turn returns a context that ends when somebody asks, or has asked.
func (a *asked) turn(ctx context.Context) (turn context.Context, done func()) {
	turn, cancel := context.WithCancelCause(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.wake = cancel; len(a.events) > 0 {
		cancel(errAsked)
	}
	return turn, func() { cancel(nil) }
}

func (a *asked) take() []rdmacm.Event {
	a.mu.Lock()
	defer a.mu.Unlock()
	events := a.events
	a.events = nil
	return events
}

// answer makes the address handle for replies to the sender of a message.
func (u *udaddy) answer(n *node, wc *verbs.WC) (err error) {
	const line = "udaddy: failed to create reply AH"
	if n.ah, err = n.pd.CreateAHFromWC(n.id.Port(), wc, n.mr.Bytes()); err != nil {
		return u.complain(cm.StatusFailed, err, line)
	}
	attr, _, err := n.id.QP().Query()
	if err != nil {
		return u.complain(cm.StatusFailed, err, line)
	}
	n.remoteQPN, n.remoteQKey = verbs.QPN(wc.Imm), attr.QKey
	return nil
}

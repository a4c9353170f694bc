package lab

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// lostMessages lists conversations that lose a message. The lost message is the first of its kind, on
// its way out of our device or in.
var lostMessages = []struct {
	server string // who listens
	lose   string
	who    string // who disconnects; "" if there is no connection
}{
	{"kernel", "out REQ", adverbHangsUp},
	{"kernel", "in REP", adverbHangsUp},
	{"kernel", "out RTU", adverbHangsUp},
	{"kernel", "out DREQ", adverbHangsUp},
	{"kernel", "in DREP", adverbHangsUp},
	{"kernel", "in DREQ", kernelHangsUp},
	{"kernel", "out DREP", kernelHangsUp},
	{"kernel", "in REJ", ""},
	{"kernel", "out SIDR_REQ", ""},
	{"kernel", "in SIDR_REP", ""},
	{"adverb", "in REQ", adverbHangsUp},
	{"adverb", "out REP", adverbHangsUp},
	{"adverb", "in RTU", adverbHangsUp},
	{"adverb", "out DREQ", adverbHangsUp},
	{"adverb", "in DREP", adverbHangsUp},
	{"adverb", "in DREQ", kernelHangsUp},
	{"adverb", "out DREP", kernelHangsUp},
	{"adverb", "out REJ", ""},
	{"adverb", "in SIDR_REQ", ""},
	{"adverb", "out SIDR_REP", ""},
}

// Both connection managers repeat a message until the message is answered, and the programs at both
// ends notice nothing. The kernel takes some seconds to repeat one, so all conversations are held
// at the same time.
func TestLostMessages(t *testing.T) {
	needLab(t)
	for _, server := range []string{"kernel", "adverb"} {
		s := cmScenario("a message is lost", server, "REQ, REP, RTU, REJ, DREQ, DREP, SIDR_REQ and SIDR_REP", false)
		s.run(t, func(ctx context.Context, t *testing.T, l *Lab) {
			var conversations sync.WaitGroup
			for _, tt := range lostMessages {
				if tt.server == server {
					conversations.Go(func() { // not t.Parallel, which waits for cores
						t.Run(tt.lose, func(t *testing.T) { loseOne(ctx, t, l, server, tt.lose, tt.who) })
					})
				}
			}
			conversations.Wait()
		})
	}
}

// loseOne holds a conversation that loses a message.
func loseOne(ctx context.Context, t *testing.T, l *Lab, server, lose, who string) {
	mads := loseFirst(lose)
	switch {
	case who == "":
		loseAnswer(ctx, t, l, server, lose, mads)
	case server == "kernel":
		disconnectDialed(ctx, t, l, nextAddr(l.Guest(0), false), who, mads.middleware()...)
	default:
		disconnectAccepted(ctx, t, l, nextAddr(l.Host(), false), who, mads.middleware()...)
	}
	mads.check(ctx, t)
}

// loseAnswer asks a question that one message answers. Either the question or the answer is lost.
func loseAnswer(ctx context.Context, t *testing.T, l *Lab, server, lose string, mads *madLoss) {
	sidr := strings.Contains(lose, "SIDR")
	switch to, at := nextAddr(l.Guest(0), false), nextAddr(l.Host(), false); {
	case server == "kernel" && sidr:
		cmPuppet(ctx, t, l.Guest(0), "listen", "udp", to, "accept")
		ev := lookUp(ctx, t, l, to, mads.middleware()...)
		if ev.Type != rdmacm.EventEstablished || !strings.HasPrefix(string(ev.UD.PrivateData), "welcome\x00") || ev.UD.QPN == 0 || ev.UD.QKey != rdmacm.UDQKey {
			t.Errorf("got event %v, status %d, %+v; want ESTABLISHED with a QPN, the Q_Key %#x and private data %q", ev.Type, ev.Status, ev.UD, rdmacm.UDQKey, "welcome")
		}
	case server == "kernel":
		d := rdmacm.Dialer{Devices: []*verbs.Device{cmDevice(t, l, false, mads.middleware()...)}}
		_, err := d.Dial(ctx, to, nil)
		wantRefusal(t, err, rdmacm.RejectInvalidServiceID, "no listener", "")
	case sidr:
		serveUD(ctx, t, cmDevice(t, l, false, mads.middleware()...), at)
		p := cmPuppet(ctx, t, l.Guest(0), "connect", "udp", at, "wait")
		wantCMPuppet(t, p, cmPuppetConnects+"ESTABLISHED 0 'welcome'\n")
	default:
		listener := cmListen(t, cmDevice(t, l, false, mads.middleware()...), at)
		p := cmPuppet(ctx, t, l.Guest(0), "connect", "tcp", at, "wait")
		rejectNext(ctx, t, listener)
		wantCMPuppet(t, p, cmPuppetConnects+"REJECTED 28 'not today'\n")
	}
}

// The guest is killed. All work that is under way to the guest fails in bounded time, with an error
// that says so.
func TestGuestKilled(t *testing.T) {
	needLab(t)
	s := cmScenario("connect, disconnect", "kernel", "guest killed", false)
	s.patience = bootPatience + patience
	s.run(t, func(ctx context.Context, t *testing.T, l *Lab) {
		const bound = 40 * time.Second // a connection manager gives up after 17 s
		g := l.Guest(0)
		to := nextAddr(g, false)
		cmPuppet(ctx, t, g, "listen", "tcp", to, "accept")
		dev := cmDevice(t, l, false)
		e := dialPuppet(ctx, t, dev, to)
		kill(ctx, t, g)
		dead, cancel := context.WithTimeoutCause(ctx, bound, errors.New("the peer is dead, and nobody says so"))
		defer cancel()
		dialed := make(chan error, 1)
		go func() {
			d := rdmacm.Dialer{Devices: []*verbs.Device{dev}}
			_, err := d.Dial(dead, to, nil)
			dialed <- err
		}()
		var wcs [1]verbs.WC
		if _, err := e.conn.QP().PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{e.mr.SGE(0, 1)}}}); err != nil {
			t.Error(err)
		} else if _, err := e.conn.SendCQ().Wait(dead, wcs[:]); err != nil || wcs[0].Status != verbs.WCRetryExceeded {
			t.Errorf("SEND: got status %v, error %v; want status %v", wcs[0].Status, err, verbs.WCRetryExceeded)
		}
		if err := e.conn.Disconnect(); err != nil {
			t.Error(err)
		}
		e.ended(dead, t)
		if err := <-dialed; !errors.Is(err, rdmacm.ErrTimeout) {
			t.Errorf("Dial: got %v, want ErrTimeout", err)
		}
	})
}

package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/lab/agent"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// cmScenario returns a scenario of connections that fail or end.
func cmScenario(program, server, variant string, v6 bool) scenario {
	return scenario{family: "Connections that fail or end", program: program, server: server, variant: variant, v6: v6, mtu: mtus[0]}
}

// eachIP calls f for IPv4 and IPv6.
func eachIP(f func(v6 bool)) {
	f(false)
	f(true)
}

// wantRefusal checks the error that Dial returns when the peer has rejected the connection.
func wantRefusal(t *testing.T, err error, reason rdmacm.RejectReason, text, data string) {
	t.Helper()
	var rej *rdmacm.RejectError
	if !errors.As(err, &rej) || !errors.Is(err, rdmacm.ErrRefused) {
		t.Fatalf("Dial: got %v, want a RejectError that is ErrRefused", err)
	}
	if rej.Reason != reason || !strings.Contains(err.Error(), text) || !strings.HasPrefix(string(rej.PrivateData), data) {
		t.Errorf("Dial: got %v (reason %d, private data %q), want %q (reason %d, private data %q)", err, rej.Reason, rej.PrivateData, text, reason, data)
	}
}

// Connections to a port on which nobody listens are refused.
func TestConnectionRefused(t *testing.T) {
	needLab(t)
	eachIP(func(v6 bool) {
		cmScenario("connect", "kernel", "no listener", v6).run(t, func(ctx context.Context, t *testing.T, l *Lab) {
			to := nextAddr(l.Guest(0), v6)
			d := rdmacm.Dialer{Devices: []*verbs.Device{cmDevice(t, l, v6)}}
			_, err := d.Dial(ctx, to, nil)
			wantRefusal(t, err, rdmacm.RejectInvalidServiceID, "connection refused: no listener for port", "")
		})
	})
	cmScenario("rping", "kernel", "no listener", false).run(t, func(ctx context.Context, t *testing.T, l *Lab) {
		wantRpingRefused(ctx, t, l.Host(), nextAddr(l.Guest(0), false), 8)
	})
	cmScenario("rping", "adverb", "no listener", false).run(t, func(ctx context.Context, t *testing.T, l *Lab) {
		// Only a device that is open answers. The listener on another port keeps the device open.
		cmListen(t, cmDevice(t, l, false), nextAddr(l.Host(), false))
		wantRpingRefused(ctx, t, l.Guest(0), nextAddr(l.Host(), false), 8)
	})
	for _, server := range []string{"kernel", "adverb"} {
		cmScenario("udaddy", server, "no listener", false).run(t, func(ctx context.Context, t *testing.T, l *Lab) {
			if server == "adverb" {
				cmListen(t, cmDevice(t, l, false), nextAddr(l.Host(), false))
			}
			srv, client := sides(l, server)
			p := start(ctx, t, client, cmArgv(client, "udaddy", "-s", srv.Addr(false).String())...)
			left, err := p.Wait()
			want := "udaddy: starting client\nudaddy: connecting\nudaddy: event: RDMA_CM_EVENT_UNREACHABLE, error: 1\ntest complete\nreturn status 1\n"
			if err != nil || left.Code != 1 || left.Stdout != want {
				t.Errorf("want exit status 1 and stdout %q; got\n%s", want, p.Report())
			}
		})
	}
}

// wantRpingRefused runs rping as a client whose connection must be rejected with that reason.
func wantRpingRefused(ctx context.Context, t *testing.T, client Side, to netip.AddrPort, reason int) {
	t.Helper()
	p := start(ctx, t, client, cmArgv(client, "rping", "-c", "-C", "1", "-a", to.Addr().String(), "-p", portText(to))...)
	left, err := p.Wait()
	lines := slices.Collect(strings.Lines(left.Stderr))
	explained := slices.ContainsFunc(lines, explains)
	says := strings.Join(slices.DeleteFunc(lines, explains), "")
	want := fmt.Sprintf("cma event RDMA_CM_EVENT_REJECTED, error %d\nwait for CONNECTED state 4\nconnect error -1\n", reason)
	_, ours := client.(*Host)
	if !ours {
		// The C program prints from two threads at the same time, so only its first line is certain.
		says, _, _ = strings.Cut(says, "\n")
		want, _, _ = strings.Cut(want, "\n")
	}
	if err != nil || left.Code != 255 || left.Stdout != "" || says != want || ours && !explained {
		t.Errorf("want exit status 255, no stdout, stderr %q, and an explanation on stderr if the program is ours; got\n%s", want, p.Report())
	}
}

// explains reports whether a line is an explanation that only our programs print.
func explains(line string) bool { return strings.HasPrefix(line, "adverb: ") }

// A server rejects a connection, and the client learns its reason.
func TestConnectionRejected(t *testing.T) {
	needLab(t)
	eachIP(func(v6 bool) {
		cmScenario("connect", "kernel", "rejected", v6).run(t, func(ctx context.Context, t *testing.T, l *Lab) {
			to := nextAddr(l.Guest(0), v6)
			cmPuppet(ctx, t, l.Guest(0), "listen", "tcp", to, "reject")
			d := rdmacm.Dialer{Devices: []*verbs.Device{cmDevice(t, l, v6)}}
			_, err := d.Dial(ctx, to, nil)
			wantRefusal(t, err, rdmacm.RejectConsumerDefined, "the peer's program has rejected the connection", "no, thanks\x00")
		})
		cmScenario("connect", "adverb", "rejected", v6).run(t, func(ctx context.Context, t *testing.T, l *Lab) {
			at := nextAddr(l.Host(), v6)
			listener := cmListen(t, cmDevice(t, l, v6), at)
			p := cmPuppet(ctx, t, l.Guest(0), "connect", "tcp", at, "wait")
			rejectNext(ctx, t, listener)
			wantCMPuppet(t, p, cmPuppetConnects+"REJECTED 28 'not today'\n")
		})
	})
	cmScenario("rping", "adverb", "rejected", false).run(t, func(ctx context.Context, t *testing.T, l *Lab) {
		at := nextAddr(l.Host(), false)
		listener := cmListen(t, cmDevice(t, l, false), at)
		done := make(chan struct{})
		go func() {
			defer close(done)
			rejectNext(ctx, t, listener)
		}()
		wantRpingRefused(ctx, t, l.Guest(0), at, 28)
		<-done
	})
	cmScenario("SIDR", "kernel", "rejected", false).run(t, func(ctx context.Context, t *testing.T, l *Lab) {
		to := nextAddr(l.Guest(0), false)
		cmPuppet(ctx, t, l.Guest(0), "listen", "udp", to, "reject")
		ev := lookUp(ctx, t, l, to)
		var refused *rdmacm.SIDRError
		if ev.Type != rdmacm.EventUnreachable || ev.Status != 2 || !errors.As(ev.Err, &refused) || !strings.HasPrefix(string(refused.PrivateData), "no, thanks\x00") {
			t.Errorf("got event %v, status %d, error %v; want UNREACHABLE, 2, and a SIDRError with private data %q", ev.Type, ev.Status, ev.Err, "no, thanks")
		}
	})
}

// rejectNext rejects the next request.
func rejectNext(ctx context.Context, t *testing.T, l *rdmacm.Listener) {
	t.Helper()
	r, err := l.Accept(ctx)
	if err == nil {
		err = r.Reject([]byte("not today"))
	}
	if err != nil {
		t.Error(err)
	}
}

// A listener closes while a peer waits for its answer. A request that the program has taken stays
// valid. Requests that nobody has taken are rejected.
func TestListenerCloses(t *testing.T) {
	needLab(t)
	cmScenario("connect", "adverb", "listener closed after the request was taken", false).run(t, func(ctx context.Context, t *testing.T, l *Lab) {
		at := nextAddr(l.Host(), false)
		listener := cmListen(t, cmDevice(t, l, false), at)
		p := cmPuppet(ctx, t, l.Guest(0), "connect", "tcp", at, "hangup")
		r, err := listener.Accept(ctx)
		if err == nil {
			err = listener.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		e := new(cmEnd)
		if _, err := r.Accept(ctx, e.config("welcome")); err != nil {
			t.Fatal(err)
		}
		defer e.close(t)
		e.ended(ctx, t)
		wantCMPuppet(t, p, cmPuppetConnects+"ESTABLISHED 0 resources 3/5 'welcome'\nDISCONNECTED 0\n")
	})
	cmScenario("connect", "adverb", "listener closed before", false).run(t, func(ctx context.Context, t *testing.T, l *Lab) {
		at := nextAddr(l.Host(), false)
		mads := loseFirst()
		dev := cmDevice(t, l, false, mads.middleware()...)
		cmListen(t, dev, nextAddr(l.Host(), false)) // so that QP1 stays in service
		listener := cmListen(t, dev, at)
		p := cmPuppet(ctx, t, l.Guest(0), "connect", "tcp", at, "wait")
		err := mads.await(ctx, "in REQ", 1)
		if err == nil {
			err = listener.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		left := finish(t, p)[0]
		// If the request had not yet reached the listener, the reason is that nobody listens.
		wantOutput(t, "the peer's events", left.Stdout, cmPuppetConnects+"REJECTED 28 ''\n", cmPuppetConnects+"REJECTED 8 ''\n")
	})
}

// These say who disconnects.
const (
	kernelHangsUp = "the kernel"
	adverbHangsUp = "adverb"
	bothHangUp    = "both at once"
)

// Either end disconnects, or both do. Either kind of end was the server.
func TestDisconnect(t *testing.T) {
	needLab(t)
	eachIP(func(v6 bool) {
		for _, who := range []string{kernelHangsUp, adverbHangsUp, bothHangUp} {
			cmScenario("disconnect", "kernel", "by "+who, v6).run(t, func(ctx context.Context, t *testing.T, l *Lab) {
				disconnectDialed(ctx, t, l, nextAddr(l.Guest(0), v6), who)
			})
			cmScenario("disconnect", "adverb", "by "+who, v6).run(t, func(ctx context.Context, t *testing.T, l *Lab) {
				disconnectAccepted(ctx, t, l, nextAddr(l.Host(), v6), who)
			})
		}
	})
}

// disconnectDialed makes a connection to the kernel and ends it. Our device gets the middleware.
func disconnectDialed(ctx context.Context, t *testing.T, l *Lab, to netip.AddrPort, who string, mw ...link.Middleware) {
	t.Helper()
	mode := "hangup"
	if who == adverbHangsUp {
		mode = "accept"
	}
	p := cmPuppet(ctx, t, l.Guest(0), "listen", "tcp", to, mode)
	e := dialPuppet(ctx, t, cmDevice(t, l, to.Addr().Is6(), mw...), to)
	e.end(ctx, t, p, who)
	wantCMPuppet(t, p, "LISTENING\nCONNECT_REQUEST 0 resources 3/5 'hello'\nESTABLISHED 0\nDISCONNECTED 0\n")
}

// disconnectAccepted accepts a connection from the kernel and ends it. Our device gets the
// middleware.
func disconnectAccepted(ctx context.Context, t *testing.T, l *Lab, at netip.AddrPort, who string, mw ...link.Middleware) {
	t.Helper()
	mode := "hangup"
	if who == adverbHangsUp {
		mode = "wait"
	}
	listener := cmListen(t, cmDevice(t, l, at.Addr().Is6(), mw...), at)
	p := cmPuppet(ctx, t, l.Guest(0), "connect", "tcp", at, mode)
	acceptPuppet(ctx, t, listener).end(ctx, t, p, who)
	wantCMPuppet(t, p, cmPuppetConnects+"ESTABLISHED 0 resources 3/5 'welcome'\nDISCONNECTED 0\n")
}

// end disconnects unless only the puppet is to do so. Then end checks that our end notices the end
// of the connection.
func (e *cmEnd) end(ctx context.Context, t *testing.T, p *Process, who string) {
	t.Helper()
	if who == adverbHangsUp {
		await(ctx, t, p, "ESTABLISHED ")
	}
	if who != kernelHangsUp {
		if err := e.conn.Disconnect(); err != nil {
			t.Fatal(err)
		}
	}
	e.ended(ctx, t)
}

// A client is killed or interrupted in the middle of its rounds, and the server notices.
func TestClientKilled(t *testing.T) {
	needLab(t)
	interrupted := cmScenario("rping", "kernel", "client interrupted", false)
	interrupted.run(t, func(ctx context.Context, t *testing.T, l *Lab) {
		srv := endClient(ctx, t, l, interrupted, syscall.SIGINT)
		awaitToldKernel(ctx, t, srv)
	})
	ours := cmScenario("rping", "adverb", "client killed", false)
	ours.run(t, func(ctx context.Context, t *testing.T, l *Lab) {
		srv := endClient(ctx, t, l, ours, syscall.SIGKILL)
		left, err := srv.Wait()
		if err != nil || left.Status != (agent.Status{}) || !strings.HasPrefix(left.Stderr, rpingTold) || !strings.HasSuffix(left.Stderr, " state 10\n") {
			t.Errorf("want a server that says that its client has disconnected, and exit status 0; got\n%s", srv.Report())
		}
	})
	// Another process of ours at the address of the client says that the client has gone. The server has
	// no other way to know: Linux's connections have no sign of life.
	told := cmScenario("rping", "kernel", "client killed beside another process of ours", false)
	told.run(t, func(ctx context.Context, t *testing.T, l *Lab) {
		beside := cmPort{rdmacm.PortSpaceTCP, nextPort()}
		told.startCM(ctx, t, l.Host(), beside, cmArgv(l.Host(), "rping", "-s", "-a", l.Host().Addr(false).String(), "-p", beside.port)...)
		srv := endClient(ctx, t, l, told, syscall.SIGKILL)
		awaitToldKernel(ctx, t, srv)
	})
	killed := cmScenario("rping", "kernel", "client killed", false)
	killed.leftOut = "a software device ends with its process, and no other process is there to say so: the C server waits for ever"
	killed.run(t, nil)
}

// rpingTold is the first line of rping's server when the server is told of the client's end.
const rpingTold = "server DISCONNECT EVENT...\nwait for RDMA_"

// endClient sends a signal to the client of a scenario in the middle of its rounds, and returns the
// server.
func endClient(ctx context.Context, t *testing.T, l *Lab, s scenario, sig syscall.Signal) *Process {
	t.Helper()
	srv, options := startRping(ctx, t, l, s, 64)
	_, client := sides(l, s.server)
	cli := start(ctx, t, client, cmArgv(client, "rping", options...)...)
	await(ctx, t, srv, "server ping data: rdma-ping-3")
	if err := cli.Signal(sig); err != nil {
		t.Fatal(err)
	}
	return srv
}

// awaitToldKernel waits until the C server says that its client has disconnected. It does not wait
// for the server's end, which is local and not always reached. The likely reason: the provider of
// rxe posts a receive to a QP in the error state without a call to the kernel, so nothing flushes
// it, and a thread of the server waits for its completion for ever. The server's output after this
// differs too, since its threads share one state: a completion may overwrite what the disconnect has
// set.
func awaitToldKernel(ctx context.Context, t *testing.T, srv *Process) {
	t.Helper()
	await(ctx, t, srv, rpingTold)
	if said := srv.stderr.String(); !strings.HasPrefix(said, rpingTold) {
		t.Errorf("want a server that says first that its client has disconnected; got\n%s", srv.Report())
	}
}

// An idle connection of ours asks the kernel for signs of life. The kernel answers them, and its
// program notices nothing of them.
func TestKeepAlive(t *testing.T) {
	needLab(t)
	const period = time.Second
	const least = 3 // answers
	s := cmScenario("keep-alive", "kernel", fmt.Sprint(period), false)
	s.run(t, func(ctx context.Context, t *testing.T, l *Lab) {
		to := nextAddr(l.Guest(0), false)
		p := cmPuppet(ctx, t, l.Guest(0), "listen", "tcp", to, "accept")
		e := new(cmEnd)
		config := e.config("hello")
		config.KeepAlive = period
		d := rdmacm.Dialer{Devices: []*verbs.Device{cmDevice(t, l, false)}}
		conn, err := d.Dial(ctx, to, config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.close(t) })
		await(ctx, t, p, "ESTABLISHED ")
		silence((least + 3) * period)
		if err := conn.Cause(); err != nil {
			t.Errorf("an idle connection has ended: %v", err)
		}
		cs, err := conn.QP().Counters()
		if err != nil {
			t.Fatal(err)
		}
		if got := cs.Value("rcvd_pkts"); got < least { // nothing else comes
			t.Errorf("the kernel has answered %d times, want %d and more", got, least)
		}
		for _, nak := range []string{"rcvd_seq_err", "rcvd_rnr_err", "req_remote_invalid_request", "req_remote_access_errors", "req_remote_op_errors"} {
			if got := cs.Value(nak); got != 0 {
				t.Errorf("%s: got %d NAKs of the kernel, want none", nak, got)
			}
		}
		e.end(ctx, t, p, adverbHangsUp)
		wantCMPuppet(t, p, "LISTENING\nCONNECT_REQUEST 0 resources 3/5 'hello'\nESTABLISHED 0\nDISCONNECTED 0\n")
	})
}

// lookUp looks up a UD service, and returns the event with the answer.
func lookUp(ctx context.Context, t *testing.T, l *Lab, to netip.AddrPort, mw ...link.Middleware) rdmacm.Event {
	t.Helper()
	ch := rdmacm.NewEventChannel(cmDevice(t, l, to.Addr().Is6(), mw...))
	id, err := rdmacm.NewID(ch, rdmacm.PortSpaceUDP)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(id.Close(), ch.Close()); err != nil {
			t.Error(err)
		}
	}()
	for _, step := range []func() error{
		func() error { return id.ResolveAddr(netip.AddrPort{}, to) },
		id.ResolveRoute,
		func() error {
			if err := id.CreateQP(nil, verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}); err != nil {
				return err
			}
			return id.Connect(nil)
		},
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
		ev, err := ch.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if ev.Type != rdmacm.EventAddrResolved && ev.Type != rdmacm.EventRouteResolved {
			return ev
		}
	}
	t.Fatal("no answer")
	return rdmacm.Event{}
}

func portText(a netip.AddrPort) string { return strconv.Itoa(int(a.Port())) }

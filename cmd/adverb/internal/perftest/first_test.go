package perftest

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// All messages come before the receiver looks for the first time. The time that the sender took counts.
func TestClockOfReceiver(t *testing.T) {
	const messages, size = 10, 64
	net := rdmatest.New(t)
	x, y := rdmatest.Connect(t, net.Device(), net.Device())
	for _, line := range []string{"-n 10 -s 64", "-n 10 -s 64 -e"} {
		inv, _, stderr := tooltest.Invocation(t, SendBW, line)
		p, _, ok := parse(inv, kindOf(SendBW))
		if !ok {
			t.Fatal(stderr)
		}
		ts := &tester{params: p, inv: inv, kind: kindOf(SendBW), ctx: t.Context(), cq: y.CQ, lanes: []lane{{qp: y.QP, promised: messages}}}
		dst, src := y.MR(messages*size), x.MR(size)
		for i := range messages {
			if _, err := y.QP.PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{dst.SGE(i*size, size)}}}); err != nil {
				t.Fatal(err)
			}
		}
		b := ts.newBandwidth(size)
		b.lanes[0].promised = messages
		ts.talk.pipe = deaf{}
		if err := ts.talk.say(nil); err != nil { // from here on the peer may send
			t.Fatal(err)
		}
		begin := now()
		for range messages { // to the acknowledgement, which the last message is placed before
			x.Send(verbs.SendWR{Op: verbs.OpSend, SGList: []verbs.SGE{src.SGE(0, size)}, Flags: verbs.SendSignaled})
			x.Done()
		}
		took := now() - begin
		r, err := b.run(size)
		if err != nil {
			t.Fatal(err)
		}
		limit := float64(messages) / float64(took) * 1e3 // million messages a second
		if r.rate > limit || r.rate == 0 || b.last-b.first < took {
			t.Errorf("%s: got %f million messages a second in %d ns, want at most %f: the sender took %d ns", line, r.rate, b.last-b.first, limit, took)
		}
	}
}

// deaf is a pipe to nobody.
type deaf struct{}

func (deaf) send([]byte) error    { return nil }
func (deaf) receive([]byte) error { return nil }
func (deaf) leave() error         { return nil }

// The watchdog ends a run when nothing has come for its patience, whenever the last message came, and no later.
func TestWatchdog(t *testing.T) {
	const patience = 120 * time.Second
	for _, lastAt := range []time.Duration{0, time.Millisecond, 999 * time.Millisecond, patience - time.Second - 1, patience + time.Second/2} {
		synctest.Test(t, func(t *testing.T) {
			b := &bandwidth{tester: &tester{ctx: t.Context()}, ctx: t.Context()}
			begin := time.Now()
			stop := b.watchdog(patience)
			for at := time.Duration(0); at < lastAt; at = min(lastAt, at+patience/2) {
				time.Sleep(min(lastAt-at, patience/2))
				b.meter.count.Add(1)
			}
			<-b.ctx.Done()
			after := time.Since(begin) - lastAt
			if !errors.Is(context.Cause(b.ctx), errStarved) || after > patience || after < patience-2*patience/looks {
				t.Errorf("last message after %v: the run ended %v later with %v, want %v later, or up to two looks less", lastAt, after, context.Cause(b.ctx), patience)
			}
			stop()
		})
	}
}

// A receiver whose messages are lost reports those that came.
func TestLostMessages(t *testing.T) {
	tooltest.Exclusive(t, "soft_lo")
	defer func(d time.Duration) { starvation = d }(starvation)
	starvation = time.Second
	for _, tt := range []struct{ server, client, want string }{ // as if ten were lost
		{"-c UD -s 64 -n 30", "-c UD -s 64 -n 20", `\n 64 +20 +0\.00 +[0-9.]+[ \t]+[0-9.]+ *\n-+\n$`},
		{"-c UC -s 64 -n 30", "-c UC -s 64 -n 20", `\n 64 +20 +0\.00 +[0-9.]+[ \t]+[0-9.]+ *\n-+\n$`},
		{"-c UD -s 64 -n 20 --reversed", "-c UD -s 64 -n 30 --reversed --json", `"iterations": 20,`},
	} {
		t.Run(strings.ReplaceAll(tt.client, " ", ""), func(t *testing.T) {
			r, other := runPair(t, "ib_send_bw", tt.server, tt.client)
			if strings.Contains(tt.client, "--reversed") {
				r, other = other, r
			}
			if r.Code != 1 || !regexp.MustCompile(tt.want).MatchString(r.Stdout) || !strings.Contains(r.Stderr, " Total Received=20, Total Iters Required=30\n") {
				t.Errorf("got status %d\n%s%swant status 1 and a row of 20 messages; the other end: %d %s", r.Code, r.Stdout, r.Stderr, other.Code, other.Stderr)
			}
		})
	}
}

// Ctrl-C ends the filling of buffers.
func TestFill(t *testing.T) {
	b := make([]byte, 3<<20+17)
	if err := fill(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	for i, v := range b {
		if v != byte(i) {
			t.Fatalf("byte %d: got %d, want %d", i, v, byte(i))
		}
	}
	clear(b)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := fill(ctx, b); !errors.Is(err, context.Canceled) || b[len(b)-1] != 0 {
		t.Errorf("after Ctrl-C: got %v and a last byte of %d, want %v and no byte at the end", err, b[len(b)-1], context.Canceled)
	}
}

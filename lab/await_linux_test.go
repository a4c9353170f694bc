package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
)

// untilEnd returns a context that also ends when a program ends. The context is for waiting for
// something that only this program would do.
func untilEnd(ctx context.Context, p *Process) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-p.Done():
			cancel(errors.New("the program has ended"))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// listening returns when a program listens on a TCP port. If the program ends instead,
// listening returns an error.
func listening(ctx context.Context, side Side, port string, p *Process) error {
	number, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	ctx, cancel := untilEnd(ctx, p)
	defer cancel()
	if err := side.AwaitTCP(ctx, number); err != nil {
		return fmt.Errorf("%w\n%s", err, p.Report())
	}
	return nil
}

// awaitListening is listening, but an error fails the test.
func awaitListening(ctx context.Context, t *testing.T, side Side, port string, p *Process) {
	t.Helper()
	if err := listening(ctx, side, port, p); err != nil {
		t.Fatal(err)
	}
}

// await waits until a program has printed text.
func await(ctx context.Context, t *testing.T, p *Process, text string) {
	t.Helper()
	if err := p.AwaitOutput(ctx, text); err != nil {
		t.Fatalf("%v\n%s", err, p.Report())
	}
}

// If a server dies at once, waiting for the server ends at once, and the error contains the server's
// output.
func TestListeningNever(t *testing.T) {
	ctx := within(t, patience)
	h := new(Host) // beside this test, without a lab
	err := listening(ctx, h, nextPort(), start(ctx, t, h, "sh", "-c", "echo bad luck >&2; exit 3"))
	if err == nil || !strings.Contains(err.Error(), "the program has ended") || !strings.Contains(err.Error(), "bad luck") || ctx.Err() != nil {
		t.Errorf("got error %v with context %v; want one that says that the program has ended with \"bad luck\", and a context that has not ended", err, ctx.Err())
	}
}

// A program of ours that listens on an IPv4 address may not yet listen on an IPv6 address.
func TestAwaitCM(t *testing.T) {
	ctx := within(t, patience)
	h := &Host{addr4: netip.MustParsePrefix("192.0.2.1/24"), addr6: netip.MustParsePrefix("2001:db8::1/64")}
	at := cmPort{rdmacm.PortSpaceTCP, nextPort()}
	p := start(ctx, t, h, "true")
	finish(t, p) // so that waiting ends
	for _, v6 := range []bool{false, true} {
		if err := awaitCM(ctx, h, at, v6, p); err == nil || ctx.Err() != nil {
			t.Errorf("IPv6 %v: got error %v with context %v, want an error because the program has ended before it listened", v6, err, ctx.Err())
		}
		claim, err := at.claim(h, v6)
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("unix", claim)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if err := awaitCM(ctx, h, at, v6, p); err != nil {
			t.Errorf("IPv6 %v: got %v, want no error since the claim exists", v6, err)
		}
	}
}

//go:build unix

package cli

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
)

// SIGTERM ends the context with its cause, and the second signal says that nothing more is waited for.
func TestSignals(t *testing.T) {
	for _, tt := range []struct {
		s          syscall.Signal
		terminated bool
		code       int
	}{{syscall.SIGTERM, true, ExitOK}, {syscall.SIGINT, false, StatusInterrupted}} {
		ctx, stop := Signals(t.Context())
		inv := &Invocation{Ctx: ctx, Endless: true}
		if err := syscall.Kill(os.Getpid(), tt.s); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
		select {
		case <-inv.Again():
			t.Errorf("%v: the first signal counts as the second", tt.s)
		default:
		}
		if got := inv.Terminated(); got != tt.terminated {
			t.Errorf("%v: terminated is %v, want %v", tt.s, got, tt.terminated)
		}
		if got := inv.Finish(context.Canceled, func(error) int { return ExitError }); got != tt.code {
			t.Errorf("%v: got status %d, want %d", tt.s, got, tt.code)
		}
		if err := syscall.Kill(os.Getpid(), tt.s); err != nil {
			t.Fatal(err)
		}
		<-inv.Again()
		stop()
	}
	ctx, stop := Signals(t.Context())
	stop()
	if !errors.Is(ctx.Err(), context.Canceled) {
		t.Errorf("after stop: got %v, want %v", ctx.Err(), context.Canceled)
	}
}

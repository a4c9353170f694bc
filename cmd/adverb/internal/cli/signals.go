package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// ErrTerminated is the cause of a context that SIGTERM has ended. A service ends its work in order then.
var ErrTerminated = errors.New("terminated")

// againKey is the key of the channel that is closed when the user or the system asks a second time.
type againKey struct{}

// Signals returns a context that ends at Ctrl-C, and at SIGTERM with the cause ErrTerminated. stop gives the signals back.
func Signals(parent context.Context) (ctx context.Context, stop func()) {
	again := make(chan struct{})
	ctx, cancel := context.WithCancelCause(context.WithValue(parent, againKey{}, again))
	signals := make(chan os.Signal, 2)
	quit, done := make(chan struct{}), make(chan struct{})
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		defer close(done)
		for n := 0; n < 2; n++ {
			select {
			case <-quit:
				return
			case s := <-signals:
				switch {
				case n == 1:
					close(again)
				case s == syscall.SIGTERM:
					cancel(ErrTerminated)
				default:
					cancel(nil)
				}
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(quit)
		<-done
		cancel(nil)
	}
}

// Terminated reports whether SIGTERM has ended the run.
func (inv *Invocation) Terminated() bool { return errors.Is(context.Cause(inv.Ctx), ErrTerminated) }

// Again returns a channel that is closed at the second signal, after which a service waits for nobody. It is nil where no
// second one can come.
func (inv *Invocation) Again() <-chan struct{} {
	again, _ := inv.Ctx.Value(againKey{}).(chan struct{})
	return again
}

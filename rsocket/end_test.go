package rsocket

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// endUntold ends a connection by its QP's failure, of which its connection manager does not hear: not every device tells.
func endUntold(t *testing.T, c *Conn) {
	t.Helper()
	if err := errors.Join(c.qp.NotifyError(nil), c.qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState)); err != nil {
		t.Fatal(err)
	}
}

// While nobody knows yet why a connection has ended, no call holds up another one: deadlines and Close end those that are
// to be told.
func TestEndUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSeverable(t, Config{})
		c := s.c.(*Conn)
		defer s.other.Close()
		defer c.Close()
		endUntold(t, c)
		call := map[string]func() error{
			"read":  func() error { _, err := c.Read(make([]byte, 1)); return err },
			"write": func() error { _, err := c.Write(make([]byte, 1)); return err },
		}
		const soon = causeTime / 100
		for _, what := range []string{"read", "write"} { // a Write that no Read came before may not have seen the end
			start := time.Now()
			c.SetDeadline(start.Add(soon))
			if err := call[what](); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != soon {
				t.Errorf("%s: error %v after %v, want %v after %v", what, err, time.Since(start), os.ErrDeadlineExceeded, soon)
			}
			c.SetDeadline(time.Time{})
		}
		ended := make(chan error)
		read := func() { ended <- call["read"]() }
		for range 2 {
			go read()
			if synctest.Wait(); !c.mu.TryLock() {
				t.Fatal("Read holds the lock while it waits for the cause of the end, want it free")
			}
			c.mu.Unlock()
			// A call without a deadline waits for the cause, and then returns it.
			if err := <-ended; !errors.Is(err, syscall.ECONNRESET) || !errors.Is(err, verbs.ErrState) {
				t.Errorf("read: error %v, want %v, as this end has taken the QP to the error state", err, syscall.ECONNRESET)
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := newSeverable(t, Config{})
		c := s.c.(*Conn)
		defer s.other.Close()
		endUntold(t, c)
		ended := make(chan error)
		go func() {
			_, err := c.Read(make([]byte, 1))
			ended <- err
		}()
		synctest.Wait()
		if !c.mu.TryLock() {
			t.Fatal("Read holds the lock while it waits for the cause of the end, want it free")
		}
		c.mu.Unlock()
		start := time.Now()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, net.ErrClosed) || time.Since(start) > closeWait {
			t.Errorf("read: error %v after %v, want %v as soon as Close is called", err, time.Since(start), net.ErrClosed)
		}
	})
}

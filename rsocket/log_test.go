package rsocket

import (
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// lines passes on the lines of a logger.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// The end of a connection is no failure: nobody is warned of one that is closed, whoever closes first. Of one that fails
// both ends are warned.
func TestCloseWarnsNobody(t *testing.T) {
	for _, what := range []string{"RoCE", "iWARP"} {
		t.Run(what, func(t *testing.T) {
			n := rdmatest.New(t)
			a, b, at := n.Device(), n.Device(), netip.AddrFrom4([4]byte{10, 0, 0, 2})
			if what == "iWARP" {
				a, _ = iwarpDevice(t, 63)
				b, at = iwarpDevice(t, 64)
			}
			said := make(lines, 1000)
			for _, d := range []*verbs.Device{a, b} {
				if err := d.SetLogger(slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{Level: slog.LevelWarn}))); err != nil {
					t.Fatal(err)
				}
			}
			x, y := between(t, a, b, at)
			if _, err := x.Write([]byte("abc")); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(y, make([]byte, 3)); err != nil {
				t.Fatal(err)
			}
			end(x)
			if _, err := y.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("behind the end: %v, want %v", err, io.EOF)
			}
			end(y)
			x, y = between(t, a, b, at)
			if err := x.CloseWrite(); err != nil {
				t.Error(err)
			}
			end(y)
			end(x)

			x, y = between(t, a, b, at)
			defer x.Close()
			defer y.Close()
			if _, err := x.qp.PostSend([]verbs.SendWR{{Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{x.out.SGE(0, 8)}, Remote: verbs.RemoteAddr{RKey: 1}}}); err != nil {
				t.Fatal(err)
			}
			if _, err := y.Read(make([]byte, 1)); err == nil {
				t.Error("a WRITE with a wrong key: no error, want one")
			}
			// A device's records keep their order, so the first warning of each would be of an earlier event.
			patience := time.After(rdmatest.Patience)
			for want := map[*verbs.Device]*Conn{a: x, b: y}; len(want) > 0; {
				select {
				case line := <-said:
					for d, c := range want {
						if !strings.Contains(line, "device="+d.Name()+" ") {
							continue
						}
						if delete(want, d); !strings.Contains(line, " qp="+c.qp.QPN().String()+" ") {
							t.Errorf("got the warning\n%swant none but of QP %v, whose WRITE has a wrong key", line, c.qp.QPN())
						}
					}
				case <-patience:
					t.Fatal("a WRITE with a wrong key: no warning of both ends, want one of each")
				}
			}
		})
	}
}

// between connects two devices, of which b has the address.
func between(t *testing.T, a, b *verbs.Device, at netip.Addr) (x, y *Conn) {
	t.Helper()
	l, err := (&ListenConfig{Devices: []*verbs.Device{b}}).Listen(t.Context(), "rsocket", net.JoinHostPort(at.String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := (&Dialer{Devices: []*verbs.Device{a}}).Dial("rsocket", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return c.(*Conn), other.(*Conn)
}

// end closes a connection if need be, and waits until nothing is left of it.
func end(c *Conn) {
	_ = c.Close()
	<-c.finished
}

//go:build amd64 || arm64

package run

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// kernelManaged is a device whose connections the kernel's connection manager makes, which the supervisor plays.
type kernelManaged struct{ verbs.ProviderDevice }

// OpenCM implements connector.KernelManaged.
func (kernelManaged) OpenCM() (*os.File, error) {
	fd, err := unix.Open(cmPath, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), cmPath), nil
}

// targetManager connects devices of Go by the kernel's connection manager: package connector's client of it.
func targetManager() error {
	ctx, cancel := context.WithTimeout(context.Background(), tooltest.Patience)
	defer cancel()
	var devs [2]*verbs.Device
	for i := range devs {
		dev, err := verbs.Open("soft_lo")
		if err != nil {
			return err
		}
		devs[i] = verbs.NewDevice(kernelManaged{dev.Provider()})
		defer devs[i].Close()
	}
	l, err := (&rdmacm.ListenConfig{Devices: devs[:1]}).Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer l.Close()
	if _, err := (&rdmacm.ListenConfig{Devices: devs[1:]}).Listen(l.Addr()); !errors.Is(err, rdmacm.ErrAddrInUse) {
		return fmt.Errorf("listen at a port that is in use: got %v, want ErrAddrInUse", err)
	}
	dialer := &rdmacm.Dialer{Devices: devs[1:]}
	for range 3 {
		if err := exchange(ctx, l, dialer); err != nil {
			return err
		}
	}
	// A request that is refused, with the listener's words.
	refused := make(chan error, 1)
	go func() {
		req, err := l.Accept(ctx)
		if err == nil {
			err = req.Reject([]byte("not today"))
		}
		refused <- err
	}()
	_, err = dialer.Dial(ctx, l.Addr(), nil)
	var no *rdmacm.RejectError
	if !errors.As(err, &no) || !strings.HasPrefix(string(no.PrivateData), "not today") {
		return fmt.Errorf("a request that is refused: got %v, want a refusal with data", err)
	}
	return <-refused
}

// exchange has both ends of a connection send and receive, and one of them end it.
func exchange(ctx context.Context, l *rdmacm.Listener, dialer *rdmacm.Dialer) error {
	type end struct {
		conn *rdmacm.Conn
		err  error
	}
	accepted := make(chan end, 1)
	go func() {
		req, err := l.Accept(ctx)
		if err != nil {
			accepted <- end{nil, err}
			return
		}
		if got := string(req.PrivateData()); !strings.HasPrefix(got, "hello") {
			err = fmt.Errorf("private data %q of the request, want hello", got)
		}
		conn, err2 := req.Accept(ctx, &rdmacm.Config{PrivateData: []byte("welcome")})
		accepted <- end{conn, errors.Join(err, err2)}
	}()
	x, err := dialer.Dial(ctx, l.Addr(), &rdmacm.Config{PrivateData: []byte("hello")})
	if err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	defer x.Close()
	other := <-accepted
	if other.err != nil {
		return fmt.Errorf("accept: %w", other.err)
	}
	defer other.conn.Close()
	return talk(ctx, x, other.conn)
}

// talk has each end send to the other, and then the second end the connection.
func talk(ctx context.Context, x, y *rdmacm.Conn) error {
	if got := string(x.PrivateData()); !strings.HasPrefix(got, "welcome") {
		return fmt.Errorf("private data %q of the answer, want welcome", got)
	}
	for _, way := range [][2]*rdmacm.Conn{{x, y}, {y, x}} {
		from, to := way[0], way[1]
		mr, err := to.PD().AllocMR(64, verbs.AccessLocalWrite)
		if err != nil {
			return err
		}
		defer mr.Close()
		if _, err := to.QP().PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{mr.SGE(0, 64)}}}); err != nil {
			return err
		}
		text, err := from.PD().AllocMR(64, 0)
		if err != nil {
			return err
		}
		defer text.Close()
		n := copy(text.Bytes(), "by way of the kernel")
		if _, err := from.QP().PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{text.SGE(0, n)}}}); err != nil {
			return err
		}
		var wc [1]verbs.WC
		if _, err := to.RecvCQ().Wait(ctx, wc[:]); err != nil || wc[0].Status != verbs.WCSuccess || string(mr.Bytes()[:wc[0].ByteLen]) != "by way of the kernel" {
			return fmt.Errorf("receive: %v, %w, %q", wc[0].Status, err, mr.Bytes()[:wc[0].ByteLen])
		}
		if _, err := from.SendCQ().Wait(ctx, wc[:]); err != nil || wc[0].Status != verbs.WCSuccess {
			return fmt.Errorf("send: %v, %w", wc[0].Status, err)
		}
	}
	if err := y.Disconnect(); err != nil {
		return fmt.Errorf("disconnect: %w", err)
	}
	select {
	case <-x.Disconnected():
		return nil
	case <-ctx.Done():
		return errors.New("the peer's end was not told")
	}
}

//go:build linux && (amd64 || arm64)

package native

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/nettest"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmaio"
	"github.com/adverb-rdma/adverb/rdmamsg"
	"github.com/adverb-rdma/adverb/rsocket"
	"github.com/adverb-rdma/adverb/verbs"
)

// packages has those packages that stand on rdmacm talk: between devices of the kernel, and between one and a software device.
func packages(t *testing.T) {
	soft := func(t *testing.T) *verbs.Device {
		d, err := verbs.Open("soft_" + strings.TrimPrefix(managed(t).Name(), "rxe_"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Errorf("close device: %v", err)
			}
		})
		return d
	}
	for _, ends := range []struct {
		name           string
		server, client func(*testing.T) *verbs.Device
	}{{"the kernel's and the kernel's", managed, managed}, {"the kernel's serves a software device", managed, soft}, {"a software device serves the kernel's", soft, managed}} {
		for _, p := range []struct {
			name string
			talk func(t *testing.T, server, client *verbs.Device, sent []byte) (got []byte, err error)
		}{{"rsocket", talkStream}, {"rdmamsg", talkMessages}, {"rdmaio", talkCalls}} {
			t.Run(ends.name+"/"+p.name, func(t *testing.T) {
				sent := make([]byte, 1<<20)
				for i := range sent {
					sent[i] = byte(i * i >> 8)
				}
				if got, err := p.talk(t, ends.server(t), ends.client(t), sent); err != nil || !bytes.Equal(got, sent) {
					t.Errorf("the echo: %v, %d bytes of %d, or others", err, len(got), len(sent))
				}
			})
		}
		t.Run(ends.name+"/nettest", func(t *testing.T) {
			server, client := ends.server(t), ends.client(t)
			nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
				a, b, err := streams(t.Context(), server, client)
				if err != nil {
					return nil, nil, nil, err
				}
				return a, b, func() { a.Close(); b.Close() }, nil
			})
		})
	}
}

// streams returns both ends of a stream.
func streams(ctx context.Context, server, client *verbs.Device) (a, b net.Conn, err error) {
	l, err := (&rsocket.ListenConfig{Devices: []*verbs.Device{server}}).Listen(ctx, "rsocket", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	a, err = (&rsocket.Dialer{Devices: []*verbs.Device{client}}).DialContext(ctx, "rsocket", l.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	if b, err = l.Accept(); err != nil {
		return nil, nil, errors.Join(err, a.Close())
	}
	return a, b, nil
}

// talkStream has a server send a stream back.
func talkStream(t *testing.T, server, client *verbs.Device, sent []byte) ([]byte, error) {
	c, other, err := streams(t.Context(), server, client)
	if err != nil {
		return nil, err
	}
	served, written := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := io.Copy(other, other)
		served <- errors.Join(err, other.Close())
	}()
	go func() {
		_, err := c.Write(sent)
		written <- errors.Join(err, c.(*rsocket.Conn).CloseWrite())
	}()
	got, err := io.ReadAll(c)
	return got, errors.Join(err, <-written, <-served, c.Close())
}

func listenAt(server *verbs.Device) (*rdmacm.Listener, error) {
	return (&rdmacm.ListenConfig{Devices: []*verbs.Device{server}}).Listen(netip.AddrPortFrom(home, 0))
}

// talkMessages has a server send a message back.
func talkMessages(t *testing.T, server, client *verbs.Device, sent []byte) ([]byte, error) {
	l, err := listenAt(server)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		served <- func() error {
			req, err := l.Accept(t.Context())
			if err != nil {
				return err
			}
			ch, err := rdmamsg.Accept(t.Context(), req, nil)
			if err != nil {
				return err
			}
			defer ch.Close()
			m, err := ch.Recv(t.Context())
			if err != nil {
				return err
			}
			err = ch.Send(t.Context(), m.Bytes())
			m.Release()
			if err == nil {
				if _, err = ch.Recv(t.Context()); err == io.EOF { // the client has it, and is done
					err = nil
				}
			}
			return err
		}()
	}()
	ch, err := rdmamsg.Dial(t.Context(), l.Addr(), &rdmamsg.Config{Dialer: &rdmacm.Dialer{Devices: []*verbs.Device{client}}})
	if err != nil {
		return nil, err
	}
	if err := ch.Send(t.Context(), sent); err != nil {
		return nil, errors.Join(err, ch.Close())
	}
	m, err := ch.Recv(t.Context())
	if err != nil {
		return nil, errors.Join(err, ch.Close())
	}
	got := bytes.Clone(m.Bytes())
	m.Release()
	return got, errors.Join(ch.Close(), <-served)
}

// talkCalls has a method read memory of the client, and write it back elsewhere.
func talkCalls(t *testing.T, server, client *verbs.Device, sent []byte) (got []byte, err error) {
	l, err := listenAt(server)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	var s rdmaio.Server
	s.Handle("copy", func(_ context.Context, c *rdmaio.Call) ([]byte, error) {
		b := make([]byte, c.In.Size())
		if _, err := c.In.ReadAt(b, 0); err != nil {
			return nil, err
		}
		_, err := c.Out.WriteAt(b, 0)
		return nil, err
	})
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	defer func() { cancel(); err = errors.Join(err, <-served) }()
	cl, err := rdmaio.Dial(t.Context(), l.Addr(), &rdmaio.Config{Dialer: &rdmacm.Dialer{Devices: []*verbs.Device{client}}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cl.Close()) }()
	in, err := cl.Bulk().Get(t.Context(), len(sent))
	if err != nil {
		return nil, err
	}
	defer in.Release()
	out, err := cl.Bulk().Get(t.Context(), len(sent))
	if err != nil {
		return nil, err
	}
	defer out.Release()
	copy(in.Bytes(), sent)
	if _, err := cl.Call(t.Context(), "copy", nil, rdmaio.Bulk{In: in, Out: out}); err != nil {
		return nil, err
	}
	return bytes.Clone(out.Bytes()), nil
}

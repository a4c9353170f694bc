package rdmamsg

import (
	"context"
	"net/netip"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// Dial connects to a listener of package rdmacm whose program calls Accept of this package, and
// starts a channel over the connection. ctx bounds both steps.
func Dial(ctx context.Context, addr netip.AddrPort, c *Config) (*Channel, error) {
	return connect(ctx, c, func(rc *rdmacm.Config) (*rdmacm.Conn, error) {
		d := &rdmacm.Dialer{}
		if c != nil && c.Dialer != nil {
			d = c.Dialer
		}
		return d.Dial(ctx, addr, rc)
	})
}

// Accept accepts a peer that has called Dial of this package, and starts a channel over the
// connection. ctx bounds both steps: a server gives ctx a deadline, and calls Accept in a goroutine
// of its own, so that a peer which stops half way holds up nobody.
func Accept(ctx context.Context, r *rdmacm.Request, c *Config) (*Channel, error) {
	return connect(ctx, c, func(rc *rdmacm.Config) (*rdmacm.Conn, error) { return r.Accept(ctx, rc) })
}

func connect(ctx context.Context, c *Config, dial func(*rdmacm.Config) (*rdmacm.Conn, error)) (*Channel, error) {
	var ch *Channel
	rc := &rdmacm.Config{QP: verbs.QPInitAttr{Cap: c.QPCap()}}
	if c != nil {
		rc.PrivateData, rc.KeepAlive = c.PrivateData, c.KeepAlive
		if pool := c.SendPool; pool != nil {
			rc.PD = pool.PD()
		} else if pool := c.RecvPool; pool != nil {
			rc.PD = pool.PD()
		}
	}
	rc.Setup = func(conn *rdmacm.Conn) (err error) {
		ch, err = New(conn.QP(), c)
		return err
	}
	conn, err := dial(rc)
	if err != nil {
		if ch != nil {
			ch.Close()
		}
		return nil, err
	}
	ch.conn = conn
	if err := ch.Start(ctx); err != nil {
		ch.Close()
		return nil, err
	}
	return ch, nil
}

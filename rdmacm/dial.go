package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// Dialer says from where to connect. Its zero value leaves that to the host's routes.
type Dialer struct {
	Devices   []*verbs.Device // to use, instead of that of Config.PD or those of the registered providers
	LocalAddr netip.AddrPort  // to connect from; port 0 stands for any
	TOS       uint8           // type of service, IPv4 TOS or IPv6 traffic class, of all packets; 0 leaves it to the device
}

// Dial connects to a listener, with a QP as c describes it. ctx bounds the attempt. Without
// a deadline it ends after 17 s if nothing answers. An unspecified address, 0.0.0.0 or [::], stands for
// this host, by the IP version that it has. A multicast or broadcast address is refused at once, with verbs.ErrInvalid.
func Dial(ctx context.Context, addr netip.AddrPort, c *Config) (*Conn, error) {
	return new(Dialer).Dial(ctx, addr, c)
}

// Dial is the function Dial, from the address and the devices of d.
func (d *Dialer) Dial(ctx context.Context, addr netip.AddrPort, c *Config) (*Conn, error) {
	return d.dial(ctx, addr, c, func(id *ID) error { return id.ResolveAddr(d.LocalAddr, addr) })
}

// dial is Dial to a peer whose address the function to resolves.
func (d *Dialer) dial(ctx context.Context, addr netip.AddrPort, c *Config, to func(*ID) error) (*Conn, error) {
	config := c.orDefault()
	ps, err := config.portSpace()
	if err == nil {
		err = config.check()
	}
	if err != nil {
		return nil, opError("dial", d.LocalAddr, addr, err)
	}
	conn := newConn()
	resolved := make(chan Event, 2) // the answers to ResolveAddr and ResolveRoute
	conn.ch = &EventChannel{}
	conn.ch.handle = func(ev Event) {
		switch ev.Type {
		case EventAddrResolved, EventAddrError, EventRouteResolved, EventRouteError:
			resolved <- ev
		default:
			conn.handle(ev)
		}
	}
	conn.ch.devices = d.Devices
	if dev := config.device(); dev != nil && len(d.Devices) == 0 {
		conn.ch.devices = []*verbs.Device{dev}
	}
	if conn.id, err = NewID(conn.ch, ps); err != nil {
		return nil, err
	}
	if err := conn.dial(ctx, d, to, &config, resolved); err != nil {
		conn.Close()
		return nil, opError("dial", conn.LocalAddr(), addr, err)
	}
	return conn, nil
}

func (c *Conn) dial(ctx context.Context, d *Dialer, to func(*ID) error, config *Config, resolved <-chan Event) error {
	if d.TOS != 0 {
		if err := c.id.SetTOS(d.TOS); err != nil {
			return err
		}
	}
	if err := c.id.SetSecurity(config.Security); err != nil {
		return err
	}
	for _, step := range []func() error{func() error { return to(c.id) }, c.id.ResolveRoute} {
		if err := step(); err != nil {
			return err
		}
		if err := c.answered(ctx, resolved); err != nil {
			return err
		}
	}
	if err := c.setup(config); err != nil {
		return err
	}
	if err := c.id.Connect(config.param()); err != nil {
		return err
	}
	return c.await(ctx)
}

// answered waits for the answer to ResolveAddr or ResolveRoute.
func (c *Conn) answered(ctx context.Context, resolved <-chan Event) error {
	select {
	case ev := <-resolved: // of most devices it is there by now
		return ev.Err
	default:
	}
	select {
	case ev := <-resolved:
		return ev.Err
	case <-c.down:
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.cause
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// setup makes the QP, and has the program prepare it.
func (c *Conn) setup(config *Config) error {
	if err := c.id.makeQP(config.PD, config.QP, config.OneCQ); err != nil {
		return err
	}
	if c.qp = c.id.QP(); c.qp == nil { // the ID was closed meanwhile
		return errClosedHere
	}
	if err := c.keepAlive(config.KeepAlive); err != nil {
		return err
	}
	if config.Setup == nil {
		return nil
	}
	return config.Setup(c)
}

// keepAlive sets the period that Config.KeepAlive says. A default is for QPs that can ask, and a period
// that somebody wants is refused where the QP cannot.
func (c *Conn) keepAlive(period time.Duration) error {
	wanted := period > 0
	if period == 0 {
		period = DefaultKeepAlive
	}
	err := c.qp.SetKeepAlive(period)
	if err == nil {
		err = c.id.SetKeepAlive(period)
	}
	if !errors.Is(err, verbs.ErrUnsupported) {
		return err
	}
	if wanted {
		return fmt.Errorf("Config.KeepAlive is %v, and would do nothing: %w", period, err)
	}
	return nil
}

// await waits until the connection is up.
func (c *Conn) await(ctx context.Context) error {
	select {
	case <-c.up:
	case <-c.down:
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.isUp && c.cause != errClosedHere: // even if it has ended by now, since the peer may have sent something
		return nil
	case !c.isDown:
		return context.Cause(ctx)
	case c.cause == errDisconnected:
		return verbs.Errorf(ErrReset, "the peer has disconnected before the connection was made")
	}
	return c.cause
}

package rsocket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// Dial connects to an address such as "192.0.2.1:7471" or "host:7471". The network is "rsocket",
// "rsocket4" or "rsocket6", or one of "tcp", "tcp4" and "tcp6", for programs that name no other.
func Dial(network, address string) (net.Conn, error) {
	return new(Dialer).DialContext(context.Background(), network, address)
}

// DialContext is Dial with a context, which bounds the attempt and not the connection. It fits
// http.Transport.DialContext and its like.
func DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return new(Dialer).DialContext(ctx, network, address)
}

// DialTimeout is Dial with a time limit.
func DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	d := Dialer{Timeout: timeout}
	return d.DialContext(context.Background(), network, address)
}

// Dialer says how to connect. Its zero value connects as Dial does.
type Dialer struct {
	Config

	// Timeout and Deadline bound the attempt, as in net.Dialer. If the host has several addresses the time is
	// shared out among them. Without a limit the attempt ends after 17 s for each address if nothing answers.
	Timeout  time.Duration
	Deadline time.Time

	LocalAddr net.Addr        // a *net.TCPAddr to connect from; port 0 is any, and so is no IP
	Devices   []*verbs.Device // to use, instead of those of the registered providers
	TOS       uint8           // IPv4 TOS or IPv6 traffic class of all packets
	Resolver  *net.Resolver   // of host names; nil is net.DefaultResolver
}

// Dial connects: see the function Dial.
func (d *Dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// DialContext connects: see the function DialContext. If a host name has several addresses they are tried
// one after the other, and the first error is returned if none answers.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := d.dial(ctx, network, address)
	if err != nil {
		return nil, err // not c, which would be an interface that is not nil
	}
	return c, nil
}

func (d *Dialer) dial(ctx context.Context, network, address string) (*Conn, error) {
	local, _ := d.LocalAddr.(*net.TCPAddr)
	fail := func(to netip.AddrPort, err error) error {
		var addr net.Addr
		if to.IsValid() {
			addr = net.TCPAddrFromAddrPort(to)
		}
		return dialError("dial", d.LocalAddr, addr, err)
	}
	cfg, err := d.Config.orDefault()
	if err == nil && d.LocalAddr != nil && local == nil {
		err = &net.AddrError{Err: "LocalAddr must be a *net.TCPAddr", Addr: d.LocalAddr.String()}
	}
	if err != nil {
		return nil, fail(netip.AddrPort{}, err)
	}
	end := d.Deadline
	if d.Timeout > 0 {
		if t := time.Now().Add(d.Timeout); end.IsZero() || t.Before(end) {
			end = t
		}
	}
	if !end.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end)
		defer cancel()
	}
	addrs, err := resolve(ctx, cmp.Or(d.Resolver, net.DefaultResolver), network, address)
	if err != nil {
		return nil, fail(netip.AddrPort{}, err)
	}
	from := rdmacm.Dialer{Devices: d.Devices, TOS: d.TOS}
	if local != nil {
		from.LocalAddr = local.AddrPort()
	}
	c, addr, err := dialAny(ctx, &from, addrs, cfg)
	if err != nil {
		return nil, fail(addr, err)
	}
	return c, nil
}

// dialAny connects to the first of the addresses that answers. If none does it returns the first one, and its error.
func dialAny(ctx context.Context, from *rdmacm.Dialer, addrs []netip.AddrPort, cfg Config) (c *Conn, addr netip.AddrPort, first error) {
	for i, addr := range addrs {
		part, cancel := share(ctx, len(addrs)-i)
		c, err := dialOne(part, fromAny(from, addr), addr, cfg)
		cancel()
		if err == nil {
			return c, addr, nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, addrs[0], first
}

// fromAny has a Dialer whose LocalAddr is a port alone, or a port of [::], connect from that port of any address of the
// peer's IP version. Package rdmacm takes the former for no address at all.
func fromAny(d *rdmacm.Dialer, to netip.AddrPort) *rdmacm.Dialer {
	ip, port := d.LocalAddr.Addr(), d.LocalAddr.Port()
	if port == 0 || ip.IsValid() && ip != netip.IPv6Unspecified() {
		return d
	}
	wild := *d
	wild.LocalAddr = netip.AddrPortFrom(netip.IPv6Unspecified(), port)
	if to.Addr().Unmap().Is4() {
		wild.LocalAddr = netip.AddrPortFrom(netip.IPv4Unspecified(), port)
	}
	return &wild
}

// minShare is the least that share leaves for an address, as package net does.
const minShare = 2 * time.Second

// share returns a context with the first address's share of the time that ctx has for n of them: an address that does not
// answer must not use up the time that the others need.
func share(ctx context.Context, n int) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok || n == 1 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, max(time.Until(end)/time.Duration(n), minShare))
}

// dialOne connects to one address.
func dialOne(ctx context.Context, from *rdmacm.Dialer, addr netip.AddrPort, cfg Config) (*Conn, error) {
	var c *Conn
	hello := make([]byte, helloSize)
	config := cfg.rdmacm(hello, func(cm *rdmacm.Conn) (err error) {
		c, err = newConn(cm, cfg, hello)
		return err
	})
	if config.Security = cfg.Security; config.Security != nil {
		config.PrivateData = []byte(secured)
	}
	cm, err := from.Dial(ctx, addr, config)
	var rejected *rdmacm.RejectError
	if cfg.Security != nil && errors.As(err, &rejected) && !errors.Is(err, rdmacm.ErrSecurity) {
		err = fmt.Errorf("%w: a listener without Security does so", err)
	}
	if err != nil {
		return nil, timedOut(ctx, err)
	}
	h, err := parseHello(cm.PrivateData())
	if err != nil {
		cm.Close()
		return nil, err
	}
	c.takeHello(&h)
	c.start()
	if cfg.Security != nil {
		err := within(ctx, &c.w, func() error {
			_, err := c.Write(hello)
			return err
		})
		if err != nil {
			c.letGo()
			return nil, timedOut(ctx, err)
		}
	}
	return c, nil
}

// timedOut makes a timeout of an error that a deadline of ctx has caused, whatever cause ctx has.
func timedOut(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && errors.Is(err, context.Cause(ctx)) {
		return &timeoutError{err}
	}
	return err
}

// timeoutError is a net.Error that is a timeout.
type timeoutError struct{ error }

func (e *timeoutError) Unwrap() error   { return e.error }
func (e *timeoutError) Timeout() bool   { return true }
func (e *timeoutError) Temporary() bool { return true }

// families are the networks that are known, and the length of their addresses; 0 is any.
var families = map[string]int{"rsocket": 0, "tcp": 0, "rsocket4": 32, "tcp4": 32, "rsocket6": 128, "tcp6": 128}

// resolve returns the addresses that a host and a port stand for. An empty host is this one: a listener takes the first
// address, [::], which includes IPv4, and who dials tries both IP versions.
func resolve(ctx context.Context, r *net.Resolver, network, address string) ([]netip.AddrPort, error) {
	bits, ok := families[network]
	if !ok {
		return nil, net.UnknownNetworkError(network)
	}
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := r.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, err
	}
	var found []netip.Addr
	switch ip, err := netip.ParseAddr(host); {
	case host == "" && bits == 32:
		found = []netip.Addr{netip.IPv4Unspecified()}
	case host == "":
		found = []netip.Addr{netip.IPv6Unspecified(), netip.IPv4Unspecified()}
	case err == nil:
		found = []netip.Addr{ip.Unmap()}
	default:
		if found, err = r.LookupNetIP(ctx, "ip", host); err != nil {
			return nil, err
		}
	}
	var addrs []netip.AddrPort
	for _, ip := range found {
		if ip = ip.Unmap(); bits == 0 || ip.BitLen() == bits {
			addrs = append(addrs, netip.AddrPortFrom(ip, uint16(port)))
		}
	}
	if len(addrs) == 0 {
		return nil, &net.AddrError{Err: "no address of network " + network, Addr: host}
	}
	return addrs, nil
}

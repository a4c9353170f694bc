package cm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// Errors of the C library's getaddrinfo.
const (
	EAINoName  = -2
	EAIAgain   = -3
	EAIService = -8
)

// LookupError is a failure of getaddrinfo.
type LookupError struct {
	Code  int
	Cause error
}

func (e *LookupError) Error() string { return e.Cause.Error() }
func (e *LookupError) Unwrap() error { return e.Cause }

// Text is gai_strerror.
func (e *LookupError) Text() string {
	switch e.Code {
	case EAIAgain:
		return "Temporary failure in name resolution"
	case EAIService:
		return "Servname not supported for ai_socktype"
	}
	return "Name or service not known"
}

// Lookup returns the address of a host, as getaddrinfo finds it. If the host has both kinds of
// address, then Lookup takes the kind of like. If like is not valid it takes the IPv4 address,
// since a server listens on 0.0.0.0 unless it is told otherwise.
func Lookup(ctx context.Context, host string, numeric bool, like netip.Addr) (netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return a, nil
	} else if numeric || host == "" {
		return netip.Addr{}, &LookupError{EAINoName, fmt.Errorf("%q is no IP address: %w", host, err)}
	}
	addrs, err := clib.Lookup(ctx, host)
	if err != nil {
		code := EAINoName
		if e, ok := errors.AsType[*net.DNSError](err); ok && e.IsTemporary {
			code = EAIAgain
		}
		return netip.Addr{}, &LookupError{code, err}
	}
	want6 := like.IsValid() && like.Unmap().Is6()
	for _, a := range addrs {
		if a.Is6() == want6 {
			return a, nil
		}
	}
	return addrs[0], nil
}

// Port returns the number of a service, which is given as a number or a name.
func Port(ctx context.Context, service string) (uint16, error) {
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return 0, &LookupError{EAIService, err}
	}
	return uint16(port), nil
}

// Flags are the flags that cmatose, udaddy and mckey share.
type Flags struct {
	Server      string // -s: the server that a client connects to
	Bind        string // -b
	Numeric     bool   // -f ip: no host names
	GID         bool   // -f gid: addresses of AF_IB
	Connections int    // -c
	Count       int    // -C: messages
	Size        int    // -S: bytes
	TOS         int    // -t; -1: not set
	Port        string // a number or the name of a service
	Space       rdmacm.PortSpace
	Device      string
}

// Set takes one of the shared flags.
func (f *Flags) Set(inv *cli.Invocation, name, arg string) error {
	switch name {
	case "server":
		f.Server = arg
	case "bind":
		f.Bind = arg
	case "format":
		switch {
		case clib.HasPrefix(arg, "ip"):
			f.Numeric = true
		case clib.HasPrefix(arg, "gid"):
			f.Numeric, f.GID = true, true
		case !clib.HasPrefix(arg, "name"):
			inv.Errorf("Warning: unknown address format\n")
		}
	case "connections":
		f.Connections = clib.Atoi(arg)
	case "messages":
		f.Count = clib.Atoi(arg)
	case "size":
		f.Size = clib.Atoi(arg)
	case "tos":
		f.TOS = int(uint8(clib.Strtol(arg)))
	case "ib-dev":
		f.Device = arg
	default:
		cli.Undeclared(name)
	}
	return nil
}

// FlagsOf returns the shared flags of the given letters, and --ib-dev.
func FlagsOf(letters string) []cli.Flag {
	return append(cli.PickFlags(flagTable, letters), DeviceFlag)
}

// flagTable has the flags of cmatose, udaddy and mckey that mean the same in each.
var flagTable = map[byte]cli.Flag{
	's': {Long: "server", Arg: "<host>", Help: "be the client of the server at <host>"},
	'b': {Long: "bind", Arg: "<host>", Help: "own address (default any; ::0 for any of IPv6)"},
	'f': {Long: "format", Arg: "<format>", Help: "of <host>: name, ip, ipv6, or gid for GIDs and service IDs, at both ends", Values: cli.OneOf("name", "ip", "ipv6", "gid")},
	'c': {Long: "connections", Arg: "<num>", Help: "connections, the same at both ends (default 1)", Check: clib.DecimalWithin(0, MaxConnections)},
	'C': {Long: "messages", Arg: "<num>", Help: "messages each way (default 10)", Check: clib.DecimalWithin(0, math.MaxInt32)},
	'S': {Long: "size", Arg: "<bytes>", Help: "bytes in a message (default 100)", Check: clib.DecimalWithin(0, math.MaxInt32)},
	't': {Long: "tos", Arg: "<tos>", Help: "type of service: IPv4 TOS or IPv6 traffic class", Check: clib.Within(0, math.MaxUint8)},
}

// BindID binds a server's ID to the address that the flags name. asked is an error of the name.
func (f *Flags) BindID(ctx context.Context, id *rdmacm.ID) (err, asked error) {
	addr, _, asked := f.Addresses(ctx)
	switch {
	case asked != nil:
		return nil, asked
	case f.GID:
		return id.BindIB(f.ib(addr)), nil
	}
	return id.BindAddr(addr), nil
}

// Resolve has a client's ID look for the server from the addresses of Addresses.
func (f *Flags) Resolve(id *rdmacm.ID, src, dst netip.AddrPort) error {
	if f.GID {
		return id.ResolveIB(f.ib(src), f.ib(dst))
	}
	return id.ResolveAddr(src, dst)
}

// ib is the address of AF_IB that an address and a port stand for.
func (f *Flags) ib(at netip.AddrPort) rdmacm.IBAddr {
	if !at.IsValid() {
		return rdmacm.IBAddr{}
	}
	a := rdmacm.IBAddr{Service: f.Space.Service(at.Port())}
	if !at.Addr().IsUnspecified() {
		a.GID = verbs.GIDFromAddr(at.Addr())
	}
	return a
}

// Addresses returns the addresses that the flags name. For a server, src is the address that it
// binds. For a client, dst is the server's address and src its own, which may be the zero value.
func (f *Flags) Addresses(ctx context.Context) (src, dst netip.AddrPort, err error) {
	port, err := Port(ctx, f.Port)
	if err != nil {
		return src, dst, err
	}
	own := netip.Addr{}
	if f.Bind != "" {
		if own, err = Lookup(ctx, f.Bind, f.Numeric, own); err != nil {
			return src, dst, err
		}
	}
	if f.Server == "" {
		if !own.IsValid() {
			own = netip.IPv4Unspecified()
		}
		return netip.AddrPortFrom(own, port), dst, nil
	}
	peer, err := Lookup(ctx, f.Server, f.Numeric, own)
	if err != nil {
		return src, dst, err
	}
	if own.IsValid() {
		src = netip.AddrPortFrom(own, 0)
	}
	return src, netip.AddrPortFrom(peer, port), nil
}

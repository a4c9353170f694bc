package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"strings"
	"syscall"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// What the connection manager's classic programs (cmatose, udaddy, mckey, cmtime) have in
// common: their options, addresses, error lines and statuses.

// cmDeviceOption is an option of ours that all have.
var cmDeviceOption = option{long: "ib-dev", arg: "<dev>", ours: true,
	help: "use this RDMA device only (default any that has the address)"}

// cmUsage makes a usage that is the classic text under a classic name, and the tool's own style
// in "adverb cmatose --help", where the long names are of use.
func cmUsage(classic string, synopsis ...string) func(w io.Writer, c *command, prog string) {
	return func(w io.Writer, c *command, prog string) {
		if !strings.HasPrefix(prog, "adverb ") {
			fmt.Fprintf(w, "usage: %s\n%s", prog, classic)
			return
		}
		fmt.Fprintf(w, "Usage:\n")
		for _, s := range synopsis {
			fmt.Fprintf(w, "  %s %s\n", prog, s)
		}
		fmt.Fprintln(w)
		printOptions(w, c)
	}
}

// cmFailed is a failure that has been reported, by its number in "return status".
type cmFailed int

func (f cmFailed) Error() string { return fmt.Sprintf("status %d", int(f)) }

// Statuses that are errnos of Linux.
const (
	cmStatusFailed   = -1
	cmStatusNoMemory = -12
	cmStatusInvalid  = -22
)

// Errors of the C library's getaddrinfo.
const (
	eaiNoName  = -2
	eaiAgain   = -3
	eaiService = -8
)

// maxCMConnections is the largest -c. A connection takes a few kilobytes and its QP's queues.
const maxCMConnections = 1 << 20

// perror prints a line that ends in an errno, as perror does, and what there is to say beyond.
func (inv *invocation) cmPerror(what string, err error) error {
	inv.errorf("%s: %s\n", what, cmStrerror(err))
	inv.explain(err)
	return cmFailed(cmStatusFailed)
}

// cmComplain prints a line on stdout, where these programs have many of theirs, and its cause.
func (inv *invocation) cmComplain(status int, cause error, format string, args ...any) error {
	inv.printf(format+"\n", args...)
	inv.explain(cause)
	return cmFailed(status)
}

// cmErrno is the errno of Linux that the C library would have given for err.
func cmErrno(err error) syscall.Errno {
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e
	}
	for _, k := range []struct {
		kind  error
		errno syscall.Errno
	}{
		{verbs.ErrInvalid, syscall.EINVAL}, {verbs.ErrState, syscall.EINVAL}, {verbs.ErrQueueFull, syscall.ENOMEM},
		{verbs.ErrLimit, syscall.EINVAL}, {verbs.ErrUnsupported, syscall.EOPNOTSUPP}, {verbs.ErrBusy, syscall.EBUSY},
		{verbs.ErrNotFound, syscall.ENODEV}, {verbs.ErrClosed, syscall.EBADF},
	} {
		if errors.Is(err, k.kind) {
			return k.errno
		}
	}
	return 0
}

// cmStrerror is strerror, which starts with a capital letter where Go's texts do not.
func cmStrerror(err error) string {
	e := cmErrno(err)
	if e == 0 {
		return err.Error()
	}
	s := e.Error()
	return strings.ToUpper(s[:1]) + s[1:]
}

// cmAtoi is the C library's atoi: decimal digits, and 0 for what is no number. It clamps where
// that would wrap around.
func cmAtoi(s string) int {
	s = strings.TrimLeft(s, " \t\n\v\f\r")
	neg := false
	if s != "" && (s[0] == '-' || s[0] == '+') {
		neg, s = s[0] == '-', s[1:]
	}
	v := 0
	for i := 0; i < len(s) && digit(s[i]) < 10; i++ {
		v = min(v*10+int(digit(s[i])), math.MaxInt32)
	}
	if neg {
		return -v
	}
	return v
}

// cmHasPrefix is strncasecmp(prefix, s, len(prefix)) == 0, by which options are told apart.
func cmHasPrefix(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// cmFlags are the options that cmatose and udaddy share.
type cmFlags struct {
	server      string // -s: the server, of a client
	bind        string // -b
	numeric     bool   // -f ip: no host names
	connections int    // -c
	count       int    // -C: messages
	size        int    // -S: bytes
	tos         int    // -t; -1: not set
	port        string // a number or the name of a service
	space       rdmacm.PortSpace
	device      string
}

var errCMGIDFormat = errors.New("-f gid: the address family of GIDs (AF_IB) is not offered. A RoCE v2 GID is an IP address: give that, without -f")

// set takes one of the shared options. Those that it does not know are for the caller.
func (f *cmFlags) set(inv *invocation, name, arg string) error {
	switch name {
	case "server":
		f.server = arg
	case "bind":
		f.bind = arg
	case "format":
		switch {
		case cmHasPrefix(arg, "ip"):
			f.numeric = true
		case cmHasPrefix(arg, "gid"):
			return errCMGIDFormat
		case !cmHasPrefix(arg, "name"):
			inv.errorf("Warning: unknown address format\n")
		}
	case "connections":
		f.connections = cmAtoi(arg)
	case "messages":
		f.count = cmAtoi(arg)
	case "size":
		f.size = cmAtoi(arg)
	case "tos":
		f.tos = int(uint8(strtol(arg)))
	case "ib-dev":
		f.device = arg
	}
	return nil
}

// cmOptions returns the options of the given letters.
func cmOptions(letters string) (list []option) {
	for _, letter := range []byte(letters) {
		o := cmOptionTable[letter]
		o.short = letter
		list = append(list, o)
	}
	return append(list, cmDeviceOption)
}

// cmOptionTable has the options of cmatose, udaddy and mckey that mean the same in each.
var cmOptionTable = map[byte]option{
	's': {long: "server", arg: "<host>", help: "be the client of the server at <host>"},
	'b': {long: "bind", arg: "<host>", help: "own address (default any; ::0 for any of IPv6)"},
	'f': {long: "format", arg: "<format>", help: "of <host>: name, ip or ipv6; gid is refused"},
	'c': {long: "connections", arg: "<num>", help: "connections, the same at both ends (default 1)"},
	'C': {long: "messages", arg: "<num>", help: "messages each way (default 10)"},
	'S': {long: "size", arg: "<bytes>", help: "bytes in a message (default 100)"},
	't': {long: "tos", arg: "<tos>", help: "type of service: IPv4 TOS or IPv6 traffic class"},
}

// cmLookupError is a failure of getaddrinfo.
type cmLookupError struct {
	code  int
	cause error
}

func (e *cmLookupError) Error() string { return e.cause.Error() }
func (e *cmLookupError) Unwrap() error { return e.cause }

// text is gai_strerror.
func (e *cmLookupError) text() string {
	switch e.code {
	case eaiAgain:
		return "Temporary failure in name resolution"
	case eaiService:
		return "Servname not supported for ai_socktype"
	}
	return "Name or service not known"
}

// cmLookup returns the address of a host. Of one that has both kinds it takes the IPv4 address,
// since servers listen on 0.0.0.0 unless told otherwise, or one of the kind of like.
func cmLookup(ctx context.Context, host string, numeric bool, like netip.Addr) (netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return a, nil
	} else if numeric || host == "" {
		return netip.Addr{}, &cmLookupError{eaiNoName, fmt.Errorf("%q is no IP address: %w", host, err)}
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		code := eaiNoName
		if e, ok := errors.AsType[*net.DNSError](err); ok && e.IsTemporary {
			code = eaiAgain
		}
		return netip.Addr{}, &cmLookupError{code, err}
	}
	want6 := like.IsValid() && like.Unmap().Is6()
	for _, a := range addrs {
		if a.Unmap().Is6() == want6 {
			return a.Unmap(), nil
		}
	}
	return addrs[0].Unmap(), nil
}

// cmPort returns the number of a service, given as number or name.
func cmPort(ctx context.Context, service string) (uint16, error) {
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return 0, &cmLookupError{eaiService, err}
	}
	return uint16(port), nil
}

// addresses returns the address that a server binds or, of a client, its own, which may be the
// zero value, and the server's.
func (f *cmFlags) addresses(ctx context.Context) (src, dst netip.AddrPort, err error) {
	port, err := cmPort(ctx, f.port)
	if err != nil {
		return src, dst, err
	}
	own := netip.Addr{}
	if f.bind != "" {
		if own, err = cmLookup(ctx, f.bind, f.numeric, own); err != nil {
			return src, dst, err
		}
	}
	if f.server == "" {
		if !own.IsValid() {
			own = netip.IPv4Unspecified()
		}
		return netip.AddrPortFrom(own, port), dst, nil
	}
	peer, err := cmLookup(ctx, f.server, f.numeric, own)
	if err != nil {
		return src, dst, err
	}
	if own.IsValid() {
		src = netip.AddrPortFrom(own, 0)
	}
	return src, netip.AddrPortFrom(peer, port), nil
}

// cmOpen makes the function that makes event channels: of the named device, or of all. done
// closes what it opened. ok is false if that failed and was reported.
func (inv *invocation) cmOpen(device string) (channel func() *rdmacm.EventChannel, done func(), ok bool) {
	if device != "" {
		dev := inv.openDevice(device)
		if dev == nil {
			return nil, nil, false
		}
		return func() *rdmacm.EventChannel { return rdmacm.NewEventChannel(dev) },
			func() { inv.explain(dev.Close()) }, true
	}
	if list, err := verbs.Devices(); len(list) == 0 {
		if err == nil {
			err = errNoDevices
		}
		inv.fail(err, "No RDMA devices were detected\n")
		return nil, nil, false
	}
	return func() *rdmacm.EventChannel { return rdmacm.NewEventChannel() }, func() {}, true
}

// cmExit is the exit status that a shell sees of main's return value.
func cmExit(status int) int { return status & 0xff }

package link

import (
	"errors"
	"fmt"
	"net/netip"
)

// Errors that Join and Leave wrap when the link is a member already, or is none.
var (
	ErrJoined    = errors.New("the link is a member of the group already")
	ErrNotJoined = errors.New("the link is no member of the group")
)

// A Multicaster is a Link that can be a member of IP multicast groups. Middleware always is one, even if the Link
// that it wraps is none. So only trying shows whether a Link can join: call the functions Join and Leave rather than
// these methods. Both methods may be called from any goroutine at any time.
//
// Sending to a group needs no membership. A datagram to a group goes to all members in reach, including other links
// of this host and the link itself.
type Multicaster interface {
	// Join makes the link a member. From then on Recv also returns datagrams to the group at Port. Their Datagram.Dst
	// is the group, because the ICRC covers that. Memberships are not counted: to join a group twice is ErrJoined.
	//
	// The group has the IP version of the link's address. It has no zone: the link's network interface implies it.
	// The multicast GID of an IPv4 group is the IPv4-mapped form of its address; that of an IPv6 group is its
	// address.
	Join(group netip.Addr) error

	// Leave ends the membership. Datagrams that have arrived for the group and have not been received are lost. To
	// leave a group that the link is not a member of is ErrNotJoined.
	Leave(group netip.Addr) error
}

// Join makes l a member of a multicast group, as Multicaster says. The error of a link that
// knows no multicast wraps errors.ErrUnsupported.
func Join(l Link, group netip.Addr) error {
	if m, ok := l.(Multicaster); ok {
		return m.Join(group)
	}
	return noMulticast("join", l, group)
}

// Leave ends a membership, as Multicaster says.
func Leave(l Link, group netip.Addr) error {
	if m, ok := l.(Multicaster); ok {
		return m.Leave(group)
	}
	return noMulticast("leave", l, group)
}

func noMulticast(verb string, l Link, group netip.Addr) error {
	return fmt.Errorf("%s multicast group %v on %v: this kind of link has no multicast on this system, Linux's UDP and the simulated network have: %w",
		verb, group, l.Addr().Addr(), errors.ErrUnsupported)
}

// CheckGroup returns why a link of address addr cannot join group, or nil.
func CheckGroup(addr, group netip.Addr) error {
	var cause string
	switch {
	case !group.IsMulticast():
		cause = "not a multicast address; groups are in 224.0.0.0/4 and ff00::/8"
	case IsV1(addr) && IsV1(group):
		return nil
	case group.Is4In6():
		cause = fmt.Sprintf("an IPv4-mapped address; the group's own address is %v", group.Unmap())
	case group.Zone() != "":
		cause = "the address has a zone; the link implies it"
	case group.Is4() && !addr.Is4():
		cause = "an IPv4 group on an IPv6 address; use an IPv4 address of the network interface"
	case !group.Is4() && addr.Is4():
		cause = "an IPv6 group on an IPv4 address; use an IPv6 address of the network interface"
	default:
		return nil
	}
	return GroupError("join", addr, group, errors.New(cause))
}

// GroupError returns the error of a Multicaster's method.
func GroupError(verb string, addr, group netip.Addr, cause error) error {
	return fmt.Errorf("%s multicast group %v on %v: %w", verb, group, addr, cause)
}

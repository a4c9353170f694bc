package connector_test

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// attempt is one connection, step by step, between IDs of two devices.
type attempt struct {
	t     *testing.T
	ch    *rdmacm.EventChannel
	id    *rdmacm.ID
	peer  *rdmacm.ID // of the request
	heard *rdmacm.EventChannel
}

func newAttempt(t *testing.T, from, to *verbs.Device) *attempt {
	t.Helper()
	a := &attempt{t: t, ch: rdmacm.NewEventChannel(from), heard: rdmacm.NewEventChannel(to)}
	var err error
	a.id, err = rdmacm.NewID(a.ch, rdmacm.PortSpaceTCP)
	must(t, err)
	t.Cleanup(func() { a.id.Close() })
	l, err := rdmacm.NewID(a.heard, rdmacm.PortSpaceTCP)
	must(t, err)
	t.Cleanup(func() { l.Close() })
	must(t, l.BindAddr(netip.AddrPortFrom(addrOf(t, to), 0)))
	must(t, l.Listen(1))
	must(t, a.id.ResolveAddr(netip.AddrPort{}, l.LocalAddr()))
	a.due(a.ch, rdmacm.EventAddrResolved)
	return a
}

func (a *attempt) due(ch *rdmacm.EventChannel, want rdmacm.EventType) rdmacm.Event {
	a.t.Helper()
	ev, err := ch.Next(a.t.Context())
	if err != nil || ev.Type != want {
		a.t.Fatalf("event %v, %v, %v; want %v", ev.Type, ev.Err, err, want)
	}
	return ev
}

// route has the route found, by path or, if it is nil, by the device.
func (a *attempt) route(path *rdmacm.PathRecord) {
	a.t.Helper()
	if path != nil {
		must(a.t, a.id.SetPath(*path))
	} else {
		must(a.t, a.id.ResolveRoute())
	}
	a.due(a.ch, rdmacm.EventRouteResolved)
}

// request asks the peer.
func (a *attempt) request() {
	a.t.Helper()
	must(a.t, a.id.CreateQP(nil, smallQP))
	must(a.t, a.id.Connect(nil))
	a.peer = a.due(a.heard, rdmacm.EventConnectRequest).ID
	a.t.Cleanup(func() { a.peer.Close() })
}

// accept says yes, and returns the attributes of both ends' QPs.
func (a *attempt) accept() (own, peer verbs.QPAttr) {
	a.t.Helper()
	must(a.t, a.peer.CreateQP(nil, smallQP))
	must(a.t, a.peer.Accept(nil))
	a.due(a.ch, rdmacm.EventEstablished)
	a.due(a.heard, rdmacm.EventEstablished)
	own, _, err1 := a.id.QP().Query()
	peer, _, err2 := a.peer.QP().Query()
	must(a.t, errors.Join(err1, err2))
	return own, peer
}

// TestKernelTOS: both ends send with the traffic class that the connecting end has chosen, whichever of them is a card's.
func TestKernelTOS(t *testing.T) {
	ks := newKernels(t)
	net := rdmatest.New(t)
	card, _ := ks.device(t, net)
	soft := net.Device()
	for name, ends := range map[string][2]*verbs.Device{"card-soft": {card, soft}, "soft-card": {soft, card}, "card-card": {card, card}} {
		for _, tos := range []uint8{0, 0x20} {
			t.Run(fmt.Sprintf("%s %#x", name, tos), func(t *testing.T) {
				a := newAttempt(t, ends[0], ends[1])
				if tos != 0 {
					must(t, a.id.SetTOS(tos))
				}
				a.route(nil)
				a.request()
				if own, peer := a.accept(); own.AH.TrafficClass != tos || peer.AH.TrafficClass != tos {
					t.Errorf("traffic classes %#x at the connecting end and %#x at the other, want %#x", own.AH.TrafficClass, peer.AH.TrafficClass, tos)
				}
			})
		}
		t.Run(name+", each its own", func(t *testing.T) {
			a := newAttempt(t, ends[0], ends[1])
			must(t, a.id.SetTOS(0x20))
			a.route(nil)
			a.request()
			must(t, a.peer.SetTOS(0x48))
			if own, peer := a.accept(); own.AH.TrafficClass != 0x20 || peer.AH.TrafficClass != 0x48 {
				t.Errorf("traffic classes %#x and %#x, want 0x20 and 0x48", own.AH.TrafficClass, peer.AH.TrafficClass)
			}
		})
	}
}

// TestKernelOwnTOS: a kernel's default traffic class stays unless the program has chosen one, 0 included.
func TestKernelOwnTOS(t *testing.T) {
	const byDefault = 0x68
	ks := newKernels(t)
	net := rdmatest.New(t)
	card, k := ks.device(t, net)
	soft := net.Device()
	var mu sync.Mutex
	told := false // a class
	k.mu.Lock()
	k.refuse = func(cmd uint32, arg []byte) error {
		var in uapi.CMSetOptionArg
		if cmd == uapi.CMSetOption && uapi.Decode(arg, &in) == nil && in.Level == uapi.OptionID && in.OptName == uapi.OptionIDTOS {
			mu.Lock()
			defer mu.Unlock()
			told = true
		}
		return nil
	}
	k.spoil = func(cmd uint32, answer []byte) []byte {
		mu.Lock()
		defer mu.Unlock()
		var u uapi.QPAttr
		if cmd != uapi.CMInitQPAttr || told || uapi.Decode(answer, &u) != nil {
			return answer
		}
		u.AHAttr.GRH.TrafficClass = byDefault
		return uapi.Append(nil, u)
	}
	k.mu.Unlock()
	for _, c := range []struct {
		what string
		set  func(*rdmacm.ID) error
		want uint8
		told bool
	}{
		{"nothing chosen", func(*rdmacm.ID) error { return nil }, byDefault, false},
		{"0 chosen", func(id *rdmacm.ID) error { return id.SetTOS(0) }, 0, true},
	} {
		a := newAttempt(t, card, soft)
		must(t, c.set(a.id))
		a.route(nil)
		a.request()
		own, _ := a.accept()
		mu.Lock()
		if own.AH.TrafficClass != c.want || told != c.told {
			t.Errorf("%s: traffic class %#x, the kernel was told %v; want %#x, %v", c.what, own.AH.TrafficClass, told, c.want, c.told)
		}
		mu.Unlock()
	}
}

// TestKernelACKTimeout: the peer of a card learns an acknowledgement timeout that is set before the route, and this end's QP
// has also one that is set later.
func TestKernelACKTimeout(t *testing.T) {
	ks := newKernels(t)
	net := rdmatest.New(t)
	card, _ := ks.device(t, net)
	soft := net.Device()
	const code, usual = 17, 15
	for _, late := range []bool{false, true} {
		a := newAttempt(t, card, soft)
		set := func() { must(t, a.id.SetACKTimeout(code)) }
		want := uint8(usual)
		if !late {
			want = code
			set()
		}
		a.route(nil)
		if late {
			set()
		}
		a.request()
		if own, peer := a.accept(); own.Timeout != code || peer.Timeout != want {
			t.Errorf("set late %v: timeouts %d at this end and %d at the peer's, want %d and %d", late, own.Timeout, peer.Timeout, code, want)
		}
	}
}

// TestKernelPathOptions: a path that the program gives to the kernel has what the options of the ID say, as on a software
// device.
func TestKernelPathOptions(t *testing.T) {
	ks := newKernels(t)
	net := rdmatest.New(t)
	card, k := ks.device(t, net)
	soft := net.Device()
	var got uapi.PathRecord
	k.mu.Lock()
	k.refuse = func(cmd uint32, arg []byte) error {
		var in uapi.CMSetOptionArg
		if cmd != uapi.CMSetOption || uapi.Decode(arg, &in) != nil || in.Level != uapi.OptionIB {
			return nil
		}
		b := make([]byte, in.OptLen)
		var data uapi.PathRecData
		if _, err := k.mem.ReadAt(b, int64(in.OptVal)); err != nil || uapi.Decode(b, &data) != nil {
			t.Errorf("option of %d bytes: %v", in.OptLen, err)
		}
		got = data.Path() // read behind the event that this command causes
		return nil
	}
	k.mu.Unlock()
	own := rdmacm.PathRecord{MTU: verbs.MTU512, TrafficClass: 0x48, PacketLifetime: 14}
	for _, options := range []bool{false, true} {
		a := newAttempt(t, card, soft)
		class, lifetime := own.TrafficClass, own.PacketLifetime
		if options {
			must(t, errors.Join(a.id.SetTOS(0x20), a.id.SetACKTimeout(17)))
			class, lifetime = 0x20, 16
		}
		path := own
		path.SGID, path.DGID = verbs.GIDFromAddr(a.id.LocalAddr().Addr()), verbs.GIDFromAddr(a.id.RemoteAddr().Addr())
		a.route(&path)
		if got.TrafficClass != class || got.PacketLifeTime != lifetime {
			t.Errorf("options %v: the kernel gets traffic class %#x and packet lifetime %d, want %#x and %d", options, got.TrafficClass, got.PacketLifeTime, class, lifetime)
		}
		a.request()
		if at, peer := a.accept(); at.AH.TrafficClass != class || peer.AH.TrafficClass != class {
			t.Errorf("options %v: traffic classes %#x and %#x, want %#x", options, at.AH.TrafficClass, peer.AH.TrafficClass, class)
		}
	}
}

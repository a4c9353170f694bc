package bench

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"strings"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// iwarpEnd is an end of a connection of iWARP devices: RDMA over TCP.
type iwarpEnd struct {
	rdmaEnd
	l      *rdmacm.Listener // the server's
	config rdmacm.Config
}

// iwarpAddress is the address that the client needs.
type iwarpAddress struct {
	Addr   netip.AddrPort
	Remote verbs.RemoteAddr
}

func newIWARPEnd(o *order, w *workload) end { return &iwarpEnd{rdmaEnd: rdmaEnd{order: o, w: w}} }

// newIWARPCRCEnd has the ends ask each other for the CRCs that MPA knows.
func newIWARPCRCEnd(o *order, w *workload) end {
	os.Setenv("ADVERB_IWARP_CRC", "1")
	return newIWARPEnd(o, w)
}

// device is the iWARP device beside the one that the order names.
func (e *iwarpEnd) device() string { return "iw_" + strings.TrimPrefix(e.Device, "soft_") }

func (e *iwarpEnd) open() (any, error) {
	pd, attr, err := e.makeObjects(e.device())
	if err != nil {
		return nil, err
	}
	e.config = rdmacm.Config{PD: pd, QP: attr, Setup: func(c *rdmacm.Conn) error {
		e.qp = c.QP()
		return e.begin()
	}}
	if !e.Server {
		return iwarpAddress{}, nil
	}
	addr, err := netip.ParseAddr(e.Addr)
	if err != nil {
		return nil, err
	}
	if e.l, err = (&rdmacm.ListenConfig{Devices: []*verbs.Device{pd.Device()}}).Listen(netip.AddrPortFrom(addr, 0)); err != nil {
		return nil, err
	}
	return iwarpAddress{e.l.Addr(), e.mr.Remote(0)}, nil
}

func (e *iwarpEnd) connect(address json.RawMessage) error {
	if e.Server {
		return nil // the client connects, once it has heard that this end is ready
	}
	var a iwarpAddress
	if err := json.Unmarshal(address, &a); err != nil {
		return err
	}
	e.peer.Remote = a.Remote
	ctx, cancel := context.WithTimeout(context.Background(), settle)
	defer cancel()
	_, err := rdmacm.Dial(ctx, a.Addr, &e.config)
	return err
}

func (e *iwarpEnd) run(stop *stopper) (result, error) {
	if e.Server {
		ctx, cancel := context.WithTimeout(stop, settle)
		defer cancel()
		r, err := e.l.Accept(ctx)
		if err != nil {
			return result{}, err
		}
		// The client may have measured, and said stop, before this end hears that the connection stands.
		established, cancel := context.WithTimeout(context.Background(), settle)
		defer cancel()
		if _, err := r.Accept(established, &e.config); err != nil {
			return result{}, err
		}
	}
	r, err := e.rdmaEnd.run(stop)
	if e.Server && errors.Is(err, verbs.WCFlushErr) { // the client has measured and left
		err = nil
	}
	return r, err
}

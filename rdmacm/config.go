package rdmacm

import (
	"cmp"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// DefaultKeepAlive is the period of silence after which a connection asks its peer for a sign of life
// unless Config says otherwise.
const DefaultKeepAlive = 5 * time.Second

// defaultWRs is how many work requests a QP has room for unless Config says otherwise.
const defaultWRs = 64

// Config says which QP connects, and how. A nil Config is an empty one.
type Config struct {
	// PD is the QP's. nil stands for the one that the connections of a device share. Dial connects from
	// the PD's device, unless Dialer.Devices names others. Request.Accept takes a PD of any Open of the
	// device that the request has come to.
	PD *verbs.PD

	// QP describes the QP to create. Its zero value is an RC QP with room for 64 work requests of
	// one SGE each way. CQs that are nil are made, as large as ID.CreateQP says, and closed with the
	// connection.
	QP verbs.QPInitAttr

	// OneCQ has one CQ made for both queues, with room for all that either may put there. Conn.SendCQ
	// and Conn.RecvCQ return it. A program with one goroutine for a connection then waits in one place:
	// WC.Op tells receives from sends, except for failures, which WC.ID tells. QP must not name CQs.
	OneCQ bool

	// PrivateData goes to the peer's program, which gets it by Request.PrivateData or Conn.PrivateData.
	// Dial has room for MaxConnectData bytes, and Accept for MaxAcceptData. It may be in Param instead,
	// but not in both. It is read after Setup, which may still change the bytes.
	PrivateData []byte

	// Param has the parameters on which the ends are to agree. nil stands for DefaultConnParam. Its
	// QPN is 0 and its SRQ false: the QP is made here, and the peer is told of it.
	Param *ConnParam

	// KeepAlive is after how long a silence of the peer an RC connection asks it for a sign of life:
	// see [verbs.QP.SetKeepAlive]. 0 stands for DefaultKeepAlive; negative is never. A peer that has
	// vanished, with its host or behind a cut in the network, is noticed within the period and the
	// retries: 6.1 s by the defaults. Then Disconnected is closed. On iWARP TCP asks, and counts whole
	// seconds: a silent peer is noticed 5 s after the period, 10 s by the default. One that has bytes to
	// acknowledge is noticed by the first repeat after that time. (Not on systems other than Linux: there
	// TCP's own retries count for it.)
	// A period for a QP that cannot ask, as those of UC, is refused with verbs.ErrUnsupported.
	KeepAlive time.Duration

	// Security has Dial demand that the packets of the connection are authenticated and encrypted, by a
	// key that the listener has too. nil leaves them as RoCEv2 has them. For a listener it is in
	// ListenConfig, and Request.Accept refuses it here.
	Security *Security

	// Setup is called when the QP has been made and the peer cannot send yet. This is the time to
	// register memory, by Conn.AllocMR, and to post receives. Setup may leave the objects that it
	// makes in Conn.Context. An error of Setup ends the attempt, and closes the memory of
	// Conn.AllocMR.
	Setup func(*Conn) error
}

// orDefault fills in the fields that c leaves empty.
func (c *Config) orDefault() Config {
	var d Config
	if c != nil {
		d = *c
	}
	if d.QP.Cap == (verbs.QPCap{}) {
		d.QP.Cap = verbs.QPCap{MaxSendWR: defaultWRs, MaxSendSGE: 1}
		if d.QP.SRQ == nil {
			d.QP.Cap.MaxRecvWR, d.QP.Cap.MaxRecvSGE = defaultWRs, 1
		}
	}
	return d
}

// portSpace returns the port space in which QPs of the configured type connect.
func (c *Config) portSpace() (PortSpace, error) {
	switch c.QP.Type {
	case 0, verbs.QPTypeRC:
		return PortSpaceTCP, nil
	case verbs.QPTypeUC:
		return PortSpaceIB, nil
	}
	return 0, verbs.Errorf(verbs.ErrUnsupported, "QP type %v: Dial and Listen connect RC QPs; use ID with %v for UD", c.QP.Type, PortSpaceUDP)
}

// device returns the device of the objects that the configuration names, or nil if it names none.
func (c *Config) device() *verbs.Device {
	if c.PD != nil {
		return c.PD.Device()
	}
	return cmp.Or(deviceOfSRQ(c.QP.SRQ), deviceOfCQ(c.QP.SendCQ), deviceOfCQ(c.QP.RecvCQ))
}

// check refuses fields that would be ignored.
func (c *Config) check() error {
	if c.OneCQ && (c.QP.SendCQ != nil || c.QP.RecvCQ != nil) {
		return verbs.Errorf(verbs.ErrInvalid, "Config.OneCQ asks for a new CQ, and Config.QP names one: leave out OneCQ, and name the CQ as SendCQ and as RecvCQ")
	}
	return c.checkParam()
}

// checkParam refuses parameters that would be ignored.
func (c *Config) checkParam() error {
	switch {
	case c.Param == nil:
	case c.Param.PrivateData != nil && c.PrivateData != nil:
		return verbs.Errorf(verbs.ErrInvalid, "there is private data in Config.PrivateData and in Config.Param: which of the two is meant?")
	case c.Param.QPN != 0 || c.Param.SRQ:
		return verbs.Errorf(verbs.ErrInvalid, "Config.Param names a QP, %v, but Dial and Accept make the QP: leave QPN and SRQ empty, or connect a QP of your own by ID", c.Param.QPN)
	}
	return nil
}

// param returns the connection's parameters.
func (c *Config) param() *ConnParam {
	p := orDefault(c.Param)
	if c.PrivateData != nil {
		p = p.with(c.PrivateData)
	}
	return &p
}

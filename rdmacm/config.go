package rdmacm

import "github.com/adverb-rdma/adverb/verbs"

// defaultWRs is how many work requests a QP has room for unless Config says otherwise.
const defaultWRs = 64

// Config says which QP connects, and how. A nil Config is an empty one.
type Config struct {
	// PD is the QP's. nil stands for the one that the connections of a device share.
	PD *verbs.PD

	// QP describes the QP to create. Its zero value is an RC QP with room for 64 work requests of
	// one SGE each way. CQs that are nil are made, each large enough for its queue.
	QP verbs.QPInitAttr

	// PrivateData goes to the peer's program, which gets it by Request.PrivateData or
	// Conn.PrivateData. Dial has room for MaxConnectData bytes, and Accept for MaxAcceptData.
	PrivateData []byte

	// Param says what the ends are to agree on. nil stands for DefaultConnParam. Its PrivateData,
	// QPN and SRQ do not count.
	Param *ConnParam

	// Setup is called when the QP has been made and the peer cannot send yet. This is the time to
	// register memory and to post receives. An error of Setup ends the attempt.
	Setup func(*Conn) error
}

// orDefault fills in what c leaves out.
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

// param returns the connection's parameters.
func (c *Config) param() *ConnParam {
	p := orDefault(c.Param)
	p.PrivateData = c.PrivateData
	return &p
}

package cm

// Each calls a function for every record that the machine keeps: connections, with those that have
// ended and are kept for late messages, UD exchanges, and listeners.
func (m *Machine) Each(conn func(*Conn), sidr func(*SIDR), listener func(*Listener)) {
	for _, c := range m.conns {
		conn(c)
	}
	for _, s := range m.sidrs {
		sidr(s)
	}
	for _, s := range m.sidrReqs {
		sidr(s)
	}
	for _, at := range m.services {
		for _, l := range at {
			listener(l)
		}
	}
}

// QPN returns the number of this end's QP, or 0 where it is not known yet.
func (c *Conn) QPN() uint32 { return c.ownParams.QPN }

// UC reports whether UC QPs connect, and not RC.
func (c *Conn) UC() bool { return c.ownParams.UC || c.peerParams.UC }

var sidrStateNames = [...]string{sidrOver: "SIDR_OVER", sidrSent: "SIDR_REQ_SENT", sidrReceived: "SIDR_REQ_RCVD", sidrReplied: "SIDR_REP_SENT"}

// State returns the name of where the exchange stands.
func (s *SIDR) State() string { return sidrStateNames[s.state] }

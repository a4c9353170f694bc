package cm

// Outstanding returns how many connections that nobody uses any more wait for a DREP.
func (m *Machine) Outstanding() int {
	n := 0
	for _, c := range m.conns {
		if c.closed && c.state == StateDREQSent {
			n++
		}
	}
	return n
}

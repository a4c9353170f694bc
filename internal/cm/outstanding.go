package cm

// Outstanding returns how many connections wait for a DREP after their user has closed them.
func (m *Machine) Outstanding() int {
	n := 0
	for _, c := range m.conns {
		if c.closed && c.state == StateDREQSent {
			n++
		}
	}
	return n
}

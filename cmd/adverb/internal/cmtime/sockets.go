package cmtime

import (
	"context"
	"net"
	"net/netip"
	"strconv"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
)

// runSockets is -S: how long TCP sockets take to connect, in the same table. The C program crashes here, so this does
// as the C program's texts say. Go makes a socket when it connects, so the time of "cm connect" has both in it.
func (m *meshRun) runSockets() error {
	m.fake = true
	m.conns = make([]meshConn, m.flags.connections)
	port, err := cm.Port(m.ctx, m.flags.port)
	if err != nil {
		return err
	}
	if m.flags.listen {
		return m.acceptSockets(net.JoinHostPort(m.own.String(), strconv.Itoa(int(port))))
	}
	a, err := cm.Lookup(m.ctx, m.flags.controller, false, netip.Addr{})
	if err != nil {
		return err
	}
	return m.connectSockets(net.JoinHostPort(a.String(), strconv.Itoa(int(port))))
}

func (m *meshRun) acceptSockets(addr string) error {
	m.inv.Printf("Server baseline socket setup\n")
	var lc net.ListenConfig
	l, err := lc.Listen(m.ctx, "tcp", addr)
	if err != nil {
		return cm.Perror(m.inv, "bind", err)
	}
	defer context.AfterFunc(m.ctx, func() { l.Close() })()
	defer l.Close()
	if err := m.oob.sync(0); err != nil { // the client may connect
		return err
	}
	m.inv.Printf("Accept sockets\n")
	socks := make([]net.Conn, 0, len(m.conns))
	defer func() { closeSockets(socks) }()
	for range m.conns {
		c, err := l.Accept()
		if err != nil {
			return cm.Perror(m.inv, "accept", err)
		}
		if len(socks) == 0 {
			m.begin(meshFullConnect)
		}
		socks = append(socks, c)
	}
	m.end(meshFullConnect)
	m.finishSockets(socks, "Server")
	return nil
}

func (m *meshRun) connectSockets(addr string) error {
	m.inv.Printf("Client baseline socket setup\n")
	if err := m.oob.sync(0); err != nil {
		return err
	}
	m.begin(meshFullConnect)
	m.inv.Printf("Creating sockets\nConnecting sockets\n")
	m.begin(meshConnect)
	socks := make([]net.Conn, 0, len(m.conns))
	defer func() { closeSockets(socks) }()
	var d net.Dialer
	for i := range m.conns {
		err := m.timed(&m.conns[i], meshConnect, func() error {
			c, err := d.DialContext(m.ctx, "tcp", addr)
			if err == nil {
				socks = append(socks, c)
			}
			return err
		})
		if err != nil {
			return cm.Perror(m.inv, "connect", err)
		}
	}
	m.end(meshConnect)
	m.end(meshFullConnect)
	m.finishSockets(socks, "Client")
	return nil
}

// finishSockets closes them and prints the table.
func (m *meshRun) finishSockets(socks []net.Conn, role string) {
	m.inv.Printf("Closing sockets\n")
	m.begin(meshDestroyID)
	closeSockets(socks)
	m.end(meshDestroyID)
	m.inv.Printf("%s baseline socket results:\n", role)
	m.report()
}

func closeSockets(socks []net.Conn) {
	for _, c := range socks {
		c.Close()
	}
}

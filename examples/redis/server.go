package main

import (
	"net"
	"strconv"
	"sync"

	"github.com/tidwall/redcon"
)

// store is a server of a few Redis commands, on any listener.
type store struct {
	sync.RWMutex
	values map[string][]byte

	channels redcon.PubSub
}

// serve serves until the listener is closed.
func serve(l net.Listener) error {
	s := &store{values: make(map[string][]byte)}
	return redcon.Serve(l, s.mux().ServeRESP, nil, nil)
}

func (s *store) mux() *redcon.ServeMux {
	mux := redcon.NewServeMux()
	handle := func(name string, args int, f func(c redcon.Conn, args [][]byte)) {
		mux.HandleFunc(name, func(c redcon.Conn, cmd redcon.Command) {
			if n := len(cmd.Args) - 1; n != args && (args >= 0 || n == 0) {
				c.WriteError("ERR wrong number of arguments for '" + name + "' command")
				return
			}
			f(c, cmd.Args[1:])
		})
	}
	const some = -1
	handle("ping", 0, func(c redcon.Conn, _ [][]byte) { c.WriteString("PONG") })
	handle("get", 1, s.get)
	handle("set", 2, s.set)
	handle("del", some, s.del)
	handle("incrby", 2, s.incrBy)
	handle("publish", 2, func(c redcon.Conn, args [][]byte) {
		c.WriteInt(s.channels.Publish(string(args[0]), string(args[1])))
	})
	handle("subscribe", some, func(c redcon.Conn, args [][]byte) {
		for _, channel := range args {
			s.channels.Subscribe(c, string(channel))
		}
	})
	return mux
}

func (s *store) get(c redcon.Conn, args [][]byte) {
	s.RLock()
	v, ok := s.values[string(args[0])]
	s.RUnlock()
	if !ok {
		c.WriteNull()
		return
	}
	c.WriteBulk(v) // values are replaced, and never changed
}

func (s *store) set(c redcon.Conn, args [][]byte) {
	s.Lock()
	s.values[string(args[0])] = append([]byte(nil), args[1]...)
	s.Unlock()
	c.WriteString("OK")
}

func (s *store) del(c redcon.Conn, args [][]byte) {
	n := 0
	s.Lock()
	for _, key := range args {
		if _, ok := s.values[string(key)]; ok {
			delete(s.values, string(key))
			n++
		}
	}
	s.Unlock()
	c.WriteInt(n)
}

func (s *store) incrBy(c redcon.Conn, args [][]byte) {
	by, err := strconv.ParseInt(string(args[1]), 10, 64)
	s.Lock()
	defer s.Unlock()
	old := s.values[string(args[0])]
	v := int64(0)
	if old != nil && err == nil {
		v, err = strconv.ParseInt(string(old), 10, 64)
	}
	if err != nil {
		c.WriteError("ERR value is not an integer or out of range")
		return
	}
	if sum := v + by; sum < v != (by < 0) {
		c.WriteError("ERR increment or decrement would overflow")
		return
	}
	s.values[string(args[0])] = strconv.AppendInt(nil, v+by, 10)
	c.WriteInt64(v + by)
}

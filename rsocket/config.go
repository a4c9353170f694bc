package rsocket

import (
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// Defaults and limits that we chose.
const (
	// DefaultBuffer is the size of a connection's ring each way, in bytes.
	DefaultBuffer = 2 << 20

	// DefaultDepth is how many messages may be under way each way. A message has the bytes of one
	// Write, or a piece of them.
	DefaultDepth = 224

	// DefaultKeepAlive is the period of silence after which a connection asks its peer for a sign of life.
	// It is that of package net.
	DefaultKeepAlive = 15 * time.Second

	minBuffer, maxBuffer = 4 << 10, 1 << 30
	minDepth, maxDepth   = 16, 1 << 14
	maxMaps              = 128
)

// Config configures the resources of a connection. The two ends need not agree. Its zero value has the defaults.
type Config struct {
	// SendBuffer and RecvBuffer are the sizes of the rings in bytes, from 4 KiB to 1 GiB; they are rounded up
	// to a power of two. 0 is DefaultBuffer. Write returns when all is in the send ring, and the peer may
	// send as much as the receive ring holds before it must wait for Read. Memory is taken page by page
	// when it is first used.
	SendBuffer, RecvBuffer int

	// Depth is how many messages may be under way each way, from 16 to 16384. 0 is DefaultDepth. Over iWARP,
	// where a message takes two work requests, it is half as many.
	Depth int

	// Maps is how many regions the peer may have mapped for WriteAt at a time, up to 128: see Conn.Map. 0 is none.
	Maps int

	// KeepAlive is after how long a silence the peer's device is asked for a sign of life, without its
	// program. A peer that has vanished is noticed within the period and the QP's retries, some
	// seconds; then calls return ETIMEDOUT. 0 is DefaultKeepAlive; negative is never.
	KeepAlive time.Duration

	// Security has the packets of the connection authenticated and encrypted, by a key that both ends have. Both
	// must then be of this package, and their devices software devices. nil leaves them as RoCEv2 has
	// them. A Dialer's Security is not Optional.
	Security *rdmacm.Security
}

// orDefault fills in the fields that c leaves empty, and brings the others within the limits.
func (c Config) orDefault() (Config, error) {
	check := func(name string, v *int, def, least, most int) error {
		if *v == 0 {
			*v = def
		}
		if *v < least || *v > most {
			return verbs.Errorf(verbs.ErrInvalid, "%s is %d: give a number from %d to %d, or 0 for %d", name, *v, least, most, def)
		}
		return nil
	}
	for _, err := range []error{
		check("SendBuffer", &c.SendBuffer, DefaultBuffer, minBuffer, maxBuffer),
		check("RecvBuffer", &c.RecvBuffer, DefaultBuffer, minBuffer, maxBuffer),
		check("Depth", &c.Depth, DefaultDepth, minDepth, maxDepth),
		check("Maps", &c.Maps, 0, 0, maxMaps),
	} {
		if err != nil {
			return c, err
		}
	}
	c.SendBuffer, c.RecvBuffer = powerOfTwo(c.SendBuffer), powerOfTwo(c.RecvBuffer)
	if c.KeepAlive == 0 {
		c.KeepAlive = DefaultKeepAlive
	}
	return c, nil
}

func powerOfTwo(n int) int {
	p := minBuffer
	for p < n {
		p *= 2
	}
	return p
}

const (
	// controls is how many messages of our own may be under way beside data.
	controls = 4

	lineSize = 64                                                         // of a processor's cache
	outStart = (controls*iomapEntrySize + lineSize - 1) &^ (lineSize - 1) // where the send ring begins

	// spareReceives are posted beyond the messages of data that the peer may send, for its control
	// messages. The peer sends few control messages while this end does not look: an entry for each
	// half of the ring that we have filled, credits for as much, and its end. So they find a receive
	// even if nobody calls Read.
	spareReceives = 32

	// repostAt is after how many messages receives are posted again.
	repostAt = spareReceives / 2
)

// receives is how many receives an end has.
func (c *Config) receives() int { return c.Depth + spareReceives }

// rdmacm returns the connection manager's configuration.
func (c *Config) rdmacm(hello []byte, setup func(*rdmacm.Conn) error) *rdmacm.Config {
	return &rdmacm.Config{
		QP: verbs.QPInitAttr{Cap: verbs.QPCap{
			MaxSendWR: c.Depth + controls*maxParts, MaxSendSGE: 1, MaxInlineData: wordSize,
			MaxRecvWR: c.receives(), MaxRecvSGE: 1,
		}},
		OneCQ:       true,
		PrivateData: hello,
		KeepAlive:   -1,
		Setup: func(cm *rdmacm.Conn) error {
			// Not by Config: a device that cannot ask is no reason to fail.
			if err := cm.ID().SetKeepAlive(c.KeepAlive); err != nil {
				return err
			}
			return setup(cm)
		},
	}
}

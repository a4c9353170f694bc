package lab

import (
	"context"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/fault"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// rewriting is a link that changes datagrams on their way in or out.
type rewriting struct {
	link.Link
	direction fault.Directions
	match     func(*link.Datagram) bool
	change    func(d *link.Datagram)
}

func rewrite(direction fault.Directions, match func(*link.Datagram) bool, change func(d *link.Datagram)) link.Middleware {
	return func(inner link.Link) link.Link { return &rewriting{inner, direction, match, change} }
}

// MaxTrain implements link.Link. Packets must not come in trains, because they are changed one by
// one.
func (l *rewriting) MaxTrain() int { return 1 }

func (l *rewriting) apply(batch []link.Datagram) {
	for i := range batch {
		if d := &batch[i]; d.Segments() == 1 && l.match(d) {
			d.Payload = append([]byte(nil), d.Payload...)
			l.change(d)
		}
	}
}

func (l *rewriting) Send(batch []link.Datagram) error {
	if l.direction == fault.Outgoing {
		batch = append([]link.Datagram(nil), batch...)
		l.apply(batch)
	}
	return l.Link.Send(batch)
}

func (l *rewriting) Recv(batch []link.Datagram) (int, error) {
	n, err := l.Link.Recv(batch)
	if l.direction == fault.Incoming {
		l.apply(batch[:n])
	}
	return n, err
}

// A packet whose ICRC is wrong in one bit is dropped and counted.
func TestVerbsBadICRC(t *testing.T) {
	needLab(t)
	for _, v6 := range []bool{false, true} {
		for _, responder := range []string{"kernel", "adverb"} {
			s := scenario{family: "Verbs", program: "RC bad ICRC", server: responder, v6: v6, mtu: 1500, variant: "counted"}
			if responder == "kernel" {
				s.check.badICRCs = func() (least, most int) { return 1, 1 }
			}
			spoil := rewrite(towards(false, responder), once(wire.RCSendMiddle), func(d *link.Datagram) {
				d.Payload[len(d.Payload)-2] ^= 0x10
			})
			s.pair(t, pairOptions{middleware: []link.Middleware{spoil}}, func(ctx context.Context, t *testing.T, p *verbsPair) {
				from, to := p.ends(responder)
				before := p.kernel.counters()
				sends(t, from, to, []int{5 * 1024}, verbs.OpSend)
				p.wantNAK(t, nakSequence)
				if responder == "adverb" {
					if d := p.us.drops(); d.ICRC != 1 {
						t.Errorf("drops %+v, want one for its ICRC", d)
					}
					return
				}
				// The lab's kernel has no counter for such packets. It counts the packets that it
				// has accepted.
				sent, _ := p.far.total()
				after := p.kernel.counters()
				if got := after["rcvd_pkts"] - before["rcvd_pkts"]; got != uint64(sent-1) {
					t.Errorf("the kernel has accepted %d of %d packets, want all but one", got, sent)
				}
			})
		}
	}
}

package lab

import (
	"context"
	"fmt"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/fault"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// SENDs and WRITEs over UC, some of many packets.
func TestVerbsUC(t *testing.T) {
	needLab(t)
	for _, mtu := range mtus {
		for _, responder := range []string{"kernel", "adverb"} {
			for _, v6 := range []bool{false, true} {
				row := func(program, variant string) scenario {
					return scenario{family: "Verbs", program: "UC " + program, server: responder, v6: v6, mtu: mtu, variant: variant, check: packetRules{oneWay: true}}
				}
				o := pairOptions{typ: verbs.QPTypeUC, access: verbs.AccessRemoteWrite}
				for _, c := range []struct {
					name string
					op   verbs.Opcode
				}{{"SEND", verbs.OpSend}, {"SEND_WITH_IMM", verbs.OpSendWithImm}} {
					row(c.name, "sizes").pair(t, o, func(ctx context.Context, t *testing.T, p *verbsPair) {
						from, to := p.ends(responder)
						sends(t, from, to, messageSizes(mtu), c.op)
					})
				}
				row("WRITE_WITH_IMM", "sizes").pair(t, o, func(ctx context.Context, t *testing.T, p *verbsPair) {
					from, to := p.ends(responder)
					writes(t, from, to, messageSizes(mtu), verbs.OpRDMAWriteWithImm)
				})
			}
		}
	}
}

// A UC message that has lost a packet does not arrive, and its receive takes the next message.
func TestVerbsUCLoss(t *testing.T) {
	needLab(t)
	for _, lost := range []wire.Opcode{wire.UCSendFirst, wire.UCSendMiddle, wire.UCSendLast} {
		for _, responder := range []string{"kernel", "adverb"} {
			s := scenario{family: "Verbs", program: "UC loss", server: responder, mtu: 1500, variant: fmt.Sprint("one ", lost), check: packetRules{oneWay: true}}
			lose := &disturber{config: fault.Config{Loss: 1, Match: once(lost), Directions: towards(false, responder)}}
			s.pair(t, pairOptions{typ: verbs.QPTypeUC, middleware: []link.Middleware{lose.middleware}}, func(ctx context.Context, t *testing.T, p *verbsPair) {
				from, to := p.ends(responder)
				const size, messages = 3*1024 + 5, 4
				var data [][]byte
				dst := to.mem(messages*size, everything)
				var wrs []verbs.SendWR
				for i := range messages {
					src, d := filled(from, size, byte(40+i))
					data = append(data, d)
					to.recv(verbs.RecvWR{ID: uint64(i), SGList: []verbs.SGE{dst.sge(i*size, size)}})
					wrs = append(wrs, verbs.SendWR{ID: uint64(i), Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{src.sge(0, size)}})
				}
				from.send(wrs...)
				for i := range wrs {
					done(t, from, uint64(i), verbs.WCSend)
				}
				dropped := 1
				if responder == "kernel" && lost != wire.UCSendFirst {
					// The lab's kernel notices the loss at the first packet of the next message,
					// and drops that message too.
					dropped = 2
				}
				for i, want := range data[dropped:] {
					if wc := done(t, to, uint64(i), verbs.WCRecv); wc.ByteLen != size {
						t.Errorf("received %d bytes, want %d", wc.ByteLen, size)
					}
					same(t, fmt.Sprint("message ", i+dropped), dst.get(i*size, size), want)
				}
				lose.check(t)
			})
		}
	}
}

// A UD message is one packet. Its receive begins with the sender's address.
func TestVerbsUD(t *testing.T) {
	needLab(t)
	for _, mtu := range mtus {
		for _, responder := range []string{"kernel", "adverb"} {
			for _, v6 := range []bool{false, true} {
				for _, c := range []struct {
					name string
					op   verbs.Opcode
				}{{"SEND", verbs.OpSend}, {"SEND_WITH_IMM", verbs.OpSendWithImm}} {
					s := scenario{family: "Verbs", program: "UD " + c.name, server: responder, v6: v6, mtu: mtu, variant: "sizes", check: packetRules{oneWay: true}}
					s.pair(t, pairOptions{typ: verbs.QPTypeUD}, func(ctx context.Context, t *testing.T, p *verbsPair) {
						from, to := p.ends(responder)
						number := p.us.qp.QPN()
						if responder == "adverb" {
							number = p.us.peer
						}
						for i, size := range []int{1, 1021, pathMTU(mtu)} {
							src, data := filled(from, size, byte(50+i))
							dst := to.mem(verbs.GRHSize+size, everything)
							to.recv(verbs.RecvWR{ID: 1, SGList: []verbs.SGE{dst.sge(0, verbs.GRHSize+size)}})
							from.send(verbs.SendWR{ID: 2, Op: c.op, Flags: signaled, Imm: testImm, SGList: []verbs.SGE{src.sge(0, size)}})
							done(t, from, 2, verbs.WCSend)
							wc := done(t, to, 1, verbs.WCRecv)
							checkImm(t, wc, c.op == verbs.OpSendWithImm)
							if wc.ByteLen != uint32(verbs.GRHSize+size) || wc.SrcQPN != number || wc.Flags&verbs.WCFlagGRH == 0 {
								t.Errorf("size %d: completion %+v, want one of %d bytes from %v with a GRH", size, wc, verbs.GRHSize+size, number)
							}
							same(t, fmt.Sprint("size ", size), dst.get(verbs.GRHSize, size), data)
						}
					})
				}
			}
		}
	}
}

package wire

import "testing"

func TestSummary(t *testing.T) {
	for _, tt := range []struct {
		p    Packet
		want string
	}{
		{
			Packet{BTH: BTH{Opcode: RCRDMAWriteFirst, DestQP: 0x17, PSN: 0x05d592, AckReq: true},
				RETH: RETH{VA: 0x7f52c0a81000, RKey: 0x4d2, Length: 8192}, Payload: make([]byte, 1024)},
			"RC RDMA_WRITE_FIRST qp=0x000017 psn=0x05d592 ack va=0x7f52c0a81000 rkey=0x000004d2 len=8192 payload=1024",
		}, {
			Packet{BTH: BTH{Opcode: RCAcknowledge, DestQP: 0x11, PSN: 1}, AETH: AETH{Syndrome: SyndromeACK(31), MSN: 3}},
			"RC ACKNOWLEDGE qp=0x000011 psn=0x000001 ACK credits=31 msn=3",
		}, {
			Packet{BTH: BTH{Opcode: RCAcknowledge}, AETH: AETH{Syndrome: SyndromeNAK(NAKRemoteAccessError), MSN: 3}},
			"RC ACKNOWLEDGE qp=0x000000 psn=0x000000 NAK remote access error msn=3",
		}, {
			Packet{BTH: BTH{Opcode: RCAcknowledge}, AETH: AETH{Syndrome: SyndromeRNR(12)}},
			"RC ACKNOWLEDGE qp=0x000000 psn=0x000000 RNR NAK timer=0.64ms msn=0",
		}, {
			Packet{BTH: BTH{Opcode: RCCompareSwap}, AtomicETH: AtomicETH{VA: 0x1000, RKey: 1, SwapAdd: 2, Compare: 3}},
			"RC COMPARE_SWAP qp=0x000000 psn=0x000000 va=0x1000 rkey=0x00000001 compare=0x3 swap=0x2",
		}, {
			Packet{BTH: BTH{Opcode: RCFetchAdd}, AtomicETH: AtomicETH{VA: 0x1000, RKey: 1, SwapAdd: 1<<64 - 1}},
			"RC FETCH_ADD qp=0x000000 psn=0x000000 va=0x1000 rkey=0x00000001 add=0xffffffffffffffff",
		}, {
			Packet{BTH: BTH{Opcode: RCAtomicAcknowledge}, AtomicAckETH: AtomicAckETH{Orig: 0x2a}},
			"RC ATOMIC_ACKNOWLEDGE qp=0x000000 psn=0x000000 ACK credits=0 msn=0 orig=0x2a",
		}, {
			Packet{BTH: BTH{Opcode: UDSendOnlyWithImm, Solicited: true}, DETH: DETH{QKey: 0x11111111, SrcQP: 0x12}, Imm: 0xabcd},
			"UD SEND_ONLY_WITH_IMM qp=0x000000 psn=0x000000 se srcqp=0x000012 qkey=0x11111111 imm=0x0000abcd payload=0",
		}, {
			Packet{BTH: BTH{Opcode: RCSendOnlyWithInvalidate}, InvalidateRKey: 0x4d2},
			"RC SEND_ONLY_WITH_INVALIDATE qp=0x000000 psn=0x000000 invalidate=0x000004d2 payload=0",
		}, {
			Packet{BTH: BTH{Opcode: RCFlush}, FETH: FETH{Placement: FlushPersistent, Selectivity: FlushMR}},
			"RC FLUSH qp=0x000000 psn=0x000000 placement=0x2 selectivity=0x1 va=0x0 rkey=0x00000000 len=0",
		},
		{Packet{BTH: BTH{Opcode: Secured, DestQP: 0x17, PSN: 0x5d592, AckReq: true}, SETH: SETH{Number: 12}, Payload: make([]byte, 1060)},
			"SECURED qp=0x000017 psn=0x05d592 ack number=12 payload=1060"},
		{
			Packet{BTH: BTH{Opcode: RCSendOnly, DestQP: 0x17, PSN: 2, AckReq: true}, Payload: make([]byte, 64), Piggybacks: true, PiggybackPSN: 1,
				AETH: AETH{Syndrome: SyndromeACK(31), MSN: 3}},
			"RC SEND_ONLY qp=0x000017 psn=0x000002 ack payload=64 acknowledges=0x000001 ACK credits=31 msn=3",
		},
		{NewCNP(0x17, DefaultPKey), "CNP qp=0x000017 psn=0x000000 becn"},
		{
			Packet{BTH: BTH{Opcode: UCSendMiddle, FECN: true, MigReq: true, Resv7: ResvAdaptiveRouting}},
			"UC SEND_MIDDLE qp=0x000000 psn=0x000000 fecn mig ar payload=0",
		},
		{Packet{BTH: BTH{Opcode: 0x15}}, "opcode 0x15 qp=0x000000 psn=0x000000"},
		{ // a payload where none belongs must be seen
			Packet{BTH: BTH{Opcode: RCRDMAReadRequest}, Payload: make([]byte, 4)},
			"RC RDMA_READ_REQUEST qp=0x000000 psn=0x000000 va=0x0 rkey=0x00000000 len=0 payload=4",
		},
	} {
		if got := tt.p.String(); got != tt.want {
			t.Errorf("summary\n%s, want\n%s", got, tt.want)
		}
	}
}

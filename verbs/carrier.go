package verbs

// The ways that a QP's packets can go by: see [QP.Carrier].
const (
	CarrierUDP = "udp"    // RoCEv2
	CarrierV1  = "rocev1" // RoCEv1, in Ethernet frames
	CarrierSHM = "shm"    // memory shared with the peer's process, which is on the same host
)

// ProviderCarrier is for implementers of providers: a ProviderQP implements it if it can tell by which way its
// packets go: see QP.Carrier.
type ProviderCarrier interface {
	Carrier() string
}

// Carrier names the carrier of the packets that the QP sends to its peer: one of the constants Carrier…, or
// another name of the device. The name is empty until RTR, and where the device cannot tell. A QP decides at
// RTR. Packets that it receives may come by another way.
func (qp *QP) Carrier() string {
	if p, ok := qp.p.(ProviderCarrier); ok {
		return p.Carrier()
	}
	return ""
}

// Package recovery is the loss recovery and congestion control of one connection's sending side: which packets are in
// flight, which were acknowledged, which are lost, when to probe, how much may go and when.
//
// It knows sequence numbers and times. It knows no packets, no queue pairs, no clock and no network: time is handed in. So
// losses and congestion can be tested, simulated and plotted without a packet.
//
//	            MayGo, Sent                     Acknowledged, Arrived, PeerHolds
//	requester --------------> State <---------------------------------------- completer
//	                            |      FirstSign, GoBack, WaitForReceiver, DetectLost
//	                            |
//	    flight        the packets in flight, as ranges: una, nxt, max
//	    congestion    the window; rttEstimator, minRTTFilter, reorderWindow
//	    probing       the probe timeout, and the answers to probes; ackDelay
//	    reordering    losses by later packets that have arrived; declaredLost: those that were spurious
//	    answers       how far the peer has come with READs and atomics
//	    bursts        toward peers that go back, on short paths
//	    Paths         several paths, and their shares
//	    Rate          pacer, and the controllers: windowControl, dcqcn, delayControl
//
// State holds these, and each of their fields is written by its own type. A UC QP has no State, and a Rate alone.
//
// The caller, which is package transport, serializes all calls.
package recovery

package meaning

import "github.com/adverb-rdma/adverb/verbs"

const subnetManager = "It comes from InfiniBand's subnet manager: RoCE has none."

var events = [...]Entry{
	verbs.EventCQErr: {Also: []string{"CQ error"}, Brief: "a CQ had no room for a completion, and the QPs that use it fail",
		Causes: []string{"the CQ has fewer entries than its QPs have work requests outstanding", "the program polls too slowly, or has stopped"},
		Checks: []string{"cqe of ibv_create_cq against max_send_wr and max_recv_wr of all its QPs"}, Tools: []string{"adverb res cq"}},
	verbs.EventQPFatal: {Also: []string{"QP fatal error", "local work queue catastrophic error"}, Brief: "the QP failed in a way that no completion can tell",
		Causes: []string{"its CQ overran", "the device failed", "a defect of the driver or of a work request"}, Checks: []string{"the kernel's log"}},
	verbs.EventQPReqErr: {Also: []string{"QP request error", "invalid request local work queue error"}, Brief: "a request of the peer was invalid, and this end has refused it; the peer's completion has status 9",
		Causes: []string{"those of status 9, with the ends changed over"}, See: []string{"status 9"}, Tools: []string{"the event's Cause, on adverb, says which rule was broken"}},
	verbs.EventQPAccessErr: {Also: []string{"QP access error", "local access violation work queue error"}, Brief: "a request of the peer broke the rules of access to memory, and this end has refused it; the peer's completion has status 10",
		Causes: []string{"those of status 10, with the ends changed over"}, See: []string{"status 10"}, Tools: []string{"the event's Cause, on adverb, says which rule was broken"}},
	verbs.EventCommEst: {Also: []string{"communication established"}, Brief: "the first packet came while the QP was in RTR",
		More: "It is no failure. A program that uses librdmacm hands it on by rdma_notify; others ignore it."},
	verbs.EventSQDrained: {Also: []string{"send queue drained"}, Brief: "in SQD, the send queue has drained", More: "It is no failure."},
	verbs.EventPathMig:   {Also: []string{"path migrated", "path migration successful"}, Brief: "the connection has moved to its alternate path", Causes: []string{"the primary path failed, or a program asked for the move"}},
	verbs.EventPathMigErr: {Also: []string{"path migration error", "path migration request error"}, Brief: "the connection could not move to its alternate path",
		Causes: []string{"the peer has taken its alternate path, and this end has loaded another one, or none", "this end was not ARMED: it had not heard that the peer wishes for migration", "the alternate path fails as well"},
		Checks: []string{"ALT_PATH of both ends: each must lead to where the other's comes from"}},
	verbs.EventDeviceFatal: {Also: []string{"device fatal error", "local catastrophic error"}, Brief: "the device failed: close all its objects, and open it again",
		Causes: []string{"a firmware failure or a reset of the card", "the PCIe device was removed", "of a software device: its network interface has gone"},
		Checks: []string{"the kernel's log"}, Tools: []string{"adverb asyncwatch"}},
	verbs.EventPortActive: {Also: []string{"port active"}, Brief: "the port is active: its link is up", Tools: []string{"adverb asyncwatch, adverb devinfo"}},
	verbs.EventPortErr: {Also: []string{"port error"}, Brief: "the port's link went down",
		Causes: []string{"a cable, a transceiver or the switch's port", "the interface was set down", "an update of the driver or the firmware"},
		Checks: []string{"ip link, ethtool, the switch's log", "QPs live on for timeout × retries: a short outage costs nothing but time"}, Tools: []string{"adverb asyncwatch, adverb devinfo"}},
	verbs.EventLIDChange:  {Also: []string{"LID change"}, Brief: "the port has another LID", More: subnetManager},
	verbs.EventPKeyChange: {Also: []string{"P_Key table change", "P_Key change"}, Brief: "the port's table of P_Keys has changed", More: subnetManager},
	verbs.EventSMChange:   {Also: []string{"SM change"}, Brief: "another subnet manager has taken over", More: subnetManager},
	verbs.EventSRQErr:     {Also: []string{"SRQ error", "SRQ catastrophic error"}, Brief: "the SRQ failed, and can be used no more", Causes: []string{"the device failed"}},
	verbs.EventSRQLimitReached: {Also: []string{"SRQ limit reached"}, Brief: "fewer receives are left in the SRQ than its limit: post more, and arm the limit anew",
		More: "It is no failure."},
	verbs.EventQPLastWQEReached: {Also: []string{"last WQE reached", "LAST_WQE_REACHED"}, Brief: "a QP with an SRQ has failed, and takes no receive from the SRQ any more",
		More: "After it, and when its completions are polled, the QP may be destroyed.", Follows: true},
	verbs.EventClientReregister: {Also: []string{"client reregister", "client reregistration"}, Brief: "the subnet manager asks for all registrations again", More: subnetManager},
	verbs.EventGIDChange: {Also: []string{"GID table changed", "GID changed", "GID table change"}, Brief: "the port's table of GIDs has changed: an address was added or removed",
		Causes: []string{"an address of the interface was changed, or a bond or VLAN went up or down"},
		Checks: []string{"whether a connection used that address: it may end with status 12", "whether the index that programs are configured with is another address now"}, Tools: []string{"adverb gids, adverb asyncwatch"}},
	verbs.EventWQFatal: {Also: []string{"WQ fatal"}, Brief: "a work queue (ibv_create_wq) failed", Causes: []string{"the device failed"}},
}

// speedChange is an event that package verbs does not have.
const speedChange = 20

func eventEntries() (list []Entry) {
	for t, e := range events {
		e.Number, e.Name = t, verbs.EventType(t).String()
		list = append(list, e)
	}
	return append(list, Entry{
		Number: speedChange, Name: "EVENT_DEVICE_SPEED_CHANGE", Also: []string{"Device link speed change", "speed change detected"},
		Brief:  "the port's link has another speed or width",
		Causes: []string{"a cable or transceiver that fails in part", "a setting of the switch or of this host"}, Checks: []string{"ibv_devinfo: active_width, active_speed; ethtool"},
	})
}

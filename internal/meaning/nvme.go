package meaning

// nvmeStatuses are the statuses by which an NVMe target rejects a connection, in the private data of the REJ of reason 28.
var nvmeStatuses = [...]Entry{
	1: {Name: "invalid length of the private data", Brief: "the target found the private data of the request too short"},
	2: {Name: "invalid format of the private data", Brief: "the target does not know the format of the request's private data", Causes: []string{"host and target are of different versions"}},
	3: {Name: "invalid queue ID", Brief: "the target has no such queue", Causes: []string{"the host asks for more queues than the target gave it: nr_io_queues"}},
	4: {Name: "invalid size of the host's send queue", Brief: "the target takes no queues of this length", Causes: []string{"queue_size of nvme connect against the target's limit"}},
	5: {Name: "invalid size of the host's receive queue", Brief: "the target takes no queues of this length", Causes: []string{"queue_size of nvme connect against the target's limit"}},
	6: {Name: "no resources", Brief: "the target has no resources for one more queue; Linux prints: resource not found",
		Causes: []string{"the limit of queues or connections of the target", "memory or QPs of the target's device are used up", "a target that still holds the queues of a host that has died"},
		Checks: []string{"fewer queues: nvme connect --nr-io-queues", "the target's kernel log, or SPDK's"}},
	7: {Name: "invalid number of READs that the host answers (IRD)", Brief: "the target does not accept the host's responder_resources", See: []string{"max_dest_rd_atomic"}},
	8: {Name: "invalid number of READs that the host sends (ORD)", Brief: "the target does not accept the host's initiator_depth", See: []string{"max_rd_atomic"}},
	9: {Name: "invalid identifier of the controller", Brief: "the queue is for a controller that the target does not have, or no more", Causes: []string{"the target was restarted, or has given the host up"}},
}

// NVMeStatus returns the text of a status by which an NVMe target rejects a connection, or "".
func NVMeStatus(status int) string {
	if status < 0 || status >= len(nvmeStatuses) {
		return ""
	}
	return nvmeStatuses[status].Name
}

func nvmeEntries() (list []Entry) {
	for n, e := range nvmeStatuses {
		if e.Name == "" {
			continue
		}
		e.Number = n
		e.More = "It stands in the private data of a REJ of reason 28; the kernel prints it behind nvme status."
		e.Tools = []string{"adverb diagnose FILE: CM-REJ-28"}
		e.See = append([]string{"reject 28"}, e.See...)
		list = append(list, e)
	}
	return list
}

var nvmeForm = &pattern{text: `\bnvme status[ :=]+(\d{1,2})\b|\bnvmet?[a-z_]*\b[^\n]*\bsts (?:0x)?(\d)\b`}

// findNVMe finds why an NVMe target has refused.
func findNVMe(t *text) []Finding {
	m := nvmeForm.FindStringSubmatchIndex(t.lower)
	if m == nil {
		return nil
	}
	g := 2
	if m[g] < 0 {
		g = 4
	}
	n, _ := parse(t.lower[m[g]:m[g+1]])
	return finding(rankVendor, m[0], t.raw[m[0]:m[1]], KindNVMe, n)
}

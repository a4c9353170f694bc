package meaning

// Texts of failures that name neither a call nor a number.

// namedTexts are texts that stand for one entry.
var namedTexts = []struct {
	re          *pattern
	kind        Kind
	number      int
	call, state string // of an errno
}{
	{re: &pattern{text: `no active ports?\b|\bport (?:number )?\d+ (?:state )?is (?:down|not active)|\blink down\b|cable unplugged|couldn'?t set the link layer`}, kind: KindPort, number: 1},
	{re: &pattern{text: `device's health compromised|device state = 2 pci_status|firmware (?:fatal|internal) error`}, kind: KindEvent, number: 8},
	{re: &pattern{text: `qp\S* moved to error state|qp\b[^\n]{0,20}\bin (?:the )?error state`}, kind: KindQPState, number: 6},
	{re: &pattern{text: `\bsrp (?:login )?(?:reject|rej)`}, kind: KindReject, number: 28},
	{re: &pattern{text: `no userspace device-specific driver|couldn'?t (?:load driver|open config directory)`}, kind: KindErrno, number: 38, call: "ibv_open_device"},
	{re: &pattern{text: `does not support the kernel abi|kernel abi version \d+ doesn'?t match`}, kind: KindErrno, number: 38, call: "ibv_open_device"},
	{re: &pattern{text: `retry count between two mpi processes`}, kind: KindStatus, number: 12},
	{re: &pattern{text: `"?receiver not ready"? retry count on a`}, kind: KindStatus, number: 13},
	{re: &pattern{text: `connection between server and client not working`}, kind: KindStatus, number: 12}, // Ceph
	{re: &pattern{text: `rejected: o2iblnd`}, kind: KindReject, number: 28},
	{re: &pattern{text: `(?:client|server) disconnect event`}, kind: KindCMEvent, number: 10},
	{re: &pattern{text: `received \d+ times addr_error`}, kind: KindCMEvent, number: 1},
	{re: &pattern{text: `cma detected device removal`}, kind: KindCMEvent, number: 11},
	{re: &pattern{text: `couldn'?t read remote address|unable to (?:read|write) (?:to|from) (?:the )?socket|failed to exchange data between server and clients?`}, kind: KindErrno, number: 104, call: "connect"},
	{re: &pattern{text: `rdma/?cma?: port \d+ already in use`}, kind: KindErrno, number: 98, call: "rdma_bind_addr"},
	{re: &pattern{text: `no done completion|will cause a leak of a command resource`}, kind: KindErrno, number: 5},
	{re: &pattern{text: `kiblnd_check_conns\(\)\) timed out`}, kind: KindErrno, number: 110},
}

// findTexts finds the entries of such texts.
func findTexts(t *text) (found []Finding) {
	for i := range namedTexts {
		n := &namedTexts[i]
		m := n.re.FindStringIndex(t.lower)
		if m == nil {
			continue
		}
		by := t.raw[m[0]:m[1]]
		if n.kind == KindErrno {
			guess := findingOfCall(rankPhrase, m[0], by, n.call, n.state, n.number)
			for i := range guess {
				guess[i].Guess = n.call != ""
			}
			found = append(found, guess...)
		} else {
			found = append(found, finding(rankPhrase, m[0], by, n.kind, n.number)...)
		}
	}
	return found
}

// firmwareStatus are the words by which the kernel's mlx5 driver says why the firmware has refused a command, and the
// errno that the call returns.
var firmwareStatus = []struct {
	re     *pattern
	number int
}{
	{&pattern{text: `status bad (?:parameter|operation|resource|resource state|index)\(0x`}, 22},
	{&pattern{text: `status limits exceeded\(0x`}, 12},
	{&pattern{text: `status resource busy\(0x`}, 16},
	{&pattern{text: `status no resources\(0x`}, 11},
	{&pattern{text: `status (?:internal error|bad system state)\(0x`}, 5},
}

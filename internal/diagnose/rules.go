package diagnose

// A rule has the parts that are common to all findings of one kind.
type rule struct {
	id        string
	severity  Severity
	certainty Certainty
	side      Side
	title     string
	remedy    []string
	wrongIf   string
}

// A ruleID is the place of a rule in the table.
type ruleID uint8

// In the order in which findings of one severity are shown: first those that are the cause of others.
const (
	capNone ruleID = iota
	capCut
	capOneWay
	capSnap
	capDup
	capTrain
	capHole

	cmNoAnswer
	cmICMP
	cmRej8
	cmRej28
	cmRej4
	cmRej10
	cmRejOther
	cmSIDR
	cmStorm
	cmSlow
	cmRepeat
	cmRNR0
	cmRD0
	gidLL
	gidMismatch
	psnMismatch
	peerDisc
	dreqNoAnswer
	qpnReuse
	ulp

	iwNotMPA
	iwReject
	iwNoAnswer
	iwCRC
	iwFrame
	iwTerminate
	iwReset
	iwSilent
	iwDepth
	iwRead
	iwLoss
	iwWindow

	icrcBad
	nat
	icrcID

	mtuICMP
	mtuBlackhole
	mtuDiff
	mtu1024
	rcSilent
	rcDied
	nakAccess
	nakInvalid
	nakOper
	rnr
	pathLoss
	lossNAK
	lossTimeout
	lossAck
	lateAnswer
	lossBurst
	livelock
	reorder
	netDup
	readSlow
	udDrop
	qKey
	pKey

	pfc
	cnp
	ecnNoCNP
	ecnOff
	cnpDSCP
	dscpMix
	ecmp
	portSrc

	numRules
)

// rules has the rules of all families.
var rules = join(captureRules, cmRules, iwarpRules, transportRules, networkRules)

func join(families ...map[ruleID]rule) (all [numRules]rule) {
	for _, f := range families {
		for id, r := range f {
			all[id] = r
		}
	}
	return all
}

// Rules returns a finding of each rule, without the parts that a capture adds.
func Rules() (list []Finding) {
	for i := range rules {
		list = append(list, rules[i].finding())
	}
	return list
}

// finding returns a finding of the rule.
func (r *rule) finding() Finding {
	return Finding{ID: r.id, Severity: r.severity, Certainty: r.certainty, Side: r.side, Title: r.title, Remedy: r.remedy, WrongIf: r.wrongIf, Frames: []int{}}
}

package diagnose

// A variant is what else than in the table of rules a capture can make of a finding.
type variant struct {
	severities  []Severity
	certainties []Certainty
}

// variants are the findings that are not always the same.
var variants = map[ruleID]variant{
	capCut:     {certainties: []Certainty{Likely}},                             // in the middle of a message
	cmNoAnswer: {certainties: []Certainty{Likely}},                             // of one REQ
	ulp:        {certainties: []Certainty{Likely}},                             // the first message says so too
	cmRD0:      {certainties: []Certainty{Proven}},                             // none was agreed
	mtuICMP:    {severities: []Severity{Warning}},                              // requests are answered
	icrcBad:    {severities: []Severity{Info}, certainties: []Certainty{Hint}}, // the receiver took the packets
	rcSilent:   {certainties: []Certainty{Likely}},                             // nothing at all came back
	rcDied:     {certainties: []Certainty{Likely}},                             // nor was anything repeated
	rnr:        {severities: []Severity{Error}},                                // its sender has given up
	lossNAK:    {certainties: []Certainty{Proven}},                             // another point of the capture, or the ICRC, shows it
	udDrop:     {severities: []Severity{Warning}},                              // over UC
	pKey:       {severities: []Severity{Warning}},                              // requests are answered
	pfc:        {severities: []Severity{Info}},                                 // now and then
	cnp:        {severities: []Severity{Info}},                                 // the same
}

// Variants returns the severities and the certainties that a finding with an ID of [Rules] can have, the usual ones first.
func Variants(id string) (severities []Severity, certainties []Certainty) {
	for i := range rules {
		if rules[i].id == id {
			v := variants[ruleID(i)]
			return append([]Severity{rules[i].severity}, v.severities...), append([]Certainty{rules[i].certainty}, v.certainties...)
		}
	}
	return nil, nil
}

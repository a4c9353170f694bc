package hca

import (
	"cmp"

	"github.com/adverb-rdma/adverb/internal/settings"
	"github.com/adverb-rdma/adverb/verbs"
)

// QPEnvironment are the settings of QPs in the environment, on whatever network the QPs are.
type QPEnvironment struct {
	Congestion verbs.CongestionControl
	Routing    verbs.AdaptiveRouting
	Standard   bool // no extensions
}

// ReadQPEnvironment reads ADVERB_CONGESTION, ADVERB_ROUTING and ADVERB_EXTENSIONS. The error is the first.
func ReadQPEnvironment() (e QPEnvironment, err error) {
	var errs [3]error
	var extensions bool
	e.Congestion, errs[0] = settings.Value("ADVERB_CONGESTION", verbs.ParseCongestionControl)
	e.Routing, errs[1] = settings.Value("ADVERB_ROUTING", verbs.ParseAdaptiveRouting)
	extensions, errs[2] = settings.Switch("ADVERB_EXTENSIONS", true)
	e.Standard = !extensions
	return e, cmp.Or(errs[:]...)
}

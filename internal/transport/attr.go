package transport

import "github.com/adverb-rdma/adverb/verbs"

// copied lists for each attribute how Modify takes it over.
var copied = []struct {
	mask verbs.QPAttrMask
	set  func(to, from *verbs.QPAttr)
}{
	{verbs.MaskAccessFlags, func(to, from *verbs.QPAttr) { to.Access = from.Access }},
	{verbs.MaskPKeyIndex, func(to, from *verbs.QPAttr) { to.PKeyIndex = from.PKeyIndex }},
	{verbs.MaskPort, func(to, from *verbs.QPAttr) { to.Port = from.Port }},
	{verbs.MaskQKey, func(to, from *verbs.QPAttr) { to.QKey = from.QKey }},
	{verbs.MaskAV, func(to, from *verbs.QPAttr) { to.AH = from.AH }},
	{verbs.MaskPathMTU, func(to, from *verbs.QPAttr) { to.PathMTU = from.PathMTU }},
	{verbs.MaskTimeout, func(to, from *verbs.QPAttr) { to.Timeout = from.Timeout }},
	{verbs.MaskRetryCnt, func(to, from *verbs.QPAttr) { to.RetryCnt = from.RetryCnt }},
	{verbs.MaskRNRRetry, func(to, from *verbs.QPAttr) { to.RNRRetry = from.RNRRetry }},
	{verbs.MaskRQPSN, func(to, from *verbs.QPAttr) { to.RQPSN = from.RQPSN }},
	{verbs.MaskSQPSN, func(to, from *verbs.QPAttr) { to.SQPSN = from.SQPSN }},
	{verbs.MaskMaxRDAtomic, func(to, from *verbs.QPAttr) { to.MaxRDAtomic = from.MaxRDAtomic }},
	{verbs.MaskMaxDestRDAtomic, func(to, from *verbs.QPAttr) { to.MaxDestRDAtomic = from.MaxDestRDAtomic }},
	{verbs.MaskMinRNRTimer, func(to, from *verbs.QPAttr) { to.MinRNRTimer = from.MinRNRTimer }},
	{verbs.MaskDestQPN, func(to, from *verbs.QPAttr) { to.DestQPN = from.DestQPN }},
	{verbs.MaskEnSQDAsyncNotify, func(to, from *verbs.QPAttr) { to.EnSQDAsyncNotify = from.EnSQDAsyncNotify }},
	{verbs.MaskAltPath, func(to, from *verbs.QPAttr) {
		to.AltAH, to.AltPKeyIndex, to.AltPort, to.AltTimeout = from.AltAH, from.AltPKeyIndex, from.AltPort, from.AltTimeout
	}},
	{verbs.MaskPathMigState, func(to, from *verbs.QPAttr) { to.PathMigState = from.PathMigState }},
	{verbs.MaskRateLimit, func(to, from *verbs.QPAttr) { to.RateLimit = from.RateLimit }},
}

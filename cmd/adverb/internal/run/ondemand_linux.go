//go:build amd64 || arm64

package run

import (
	"github.com/adverb-rdma/adverb/internal/uverbs"
	"github.com/adverb-rdma/adverb/verbs"
)

// RegisterOnDemand implements uverbs.Memory. A copy reaches what the program has mapped at that time.
func (m *memory) RegisterOnDemand(c uverbs.Caller, pd *verbs.PD, start, length, iova uint64, access verbs.Access) (*verbs.MR, error) {
	p, err := c.(caller).Process()
	if err != nil {
		return nil, err
	}
	return pd.RegForeignMR(&copied{p, start}, int(length), iova, access)
}

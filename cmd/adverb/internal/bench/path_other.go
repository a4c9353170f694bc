//go:build !linux

package bench

import (
	"errors"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/bench/emulator"
)

func openPath(emulator.Config, []int) (*pathSite, error) {
	return nil, errors.New("network namespaces are Linux's")
}

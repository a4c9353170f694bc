//go:build !linux || !(amd64 || arm64)

package native

import "github.com/adverb-rdma/adverb/verbs"

func init() { verbs.Register("native", provider{}) }

// provider has no devices here.
type provider struct{}

// Devices implements verbs.Provider.
func (provider) Devices() ([]verbs.DeviceInfo, error) { return nil, nil }

// Open implements verbs.Provider.
func (provider) Open(string) (verbs.ProviderDevice, error) { return nil, verbs.ErrNotFound }

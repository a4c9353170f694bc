package verbs

import (
	"os"
	"path"
	"slices"
	"strings"
)

// envDevices is the variable of the environment that chooses devices.
const envDevices = "ADVERB_DEVICES"

// choice is the value of the variable: names of devices or of providers, or patterns of [path.Match], the first choice first.
// An empty one leaves everything as it is.
type choice []string

func readChoice() (c choice, err error) {
	for name := range strings.SplitSeq(os.Getenv(envDevices), ",") {
		name = strings.TrimSpace(name)
		if name == "" {
			continue
		}
		if _, err := path.Match(name, ""); err != nil {
			return nil, invalidf("%s: %q is no pattern: %w", envDevices, name, err)
		}
		c = append(c, name)
	}
	return c, nil
}

// place returns the place of the first choice that takes a device, or -1.
func (c choice) place(d *DeviceInfo) int {
	return slices.IndexFunc(c, func(name string) bool {
		ok, _ := path.Match(name, d.Name) // which readChoice has checked
		return ok || name == d.Provider
	})
}

// asks reports whether a provider may have a device that is chosen. It may not if only other providers are named.
func (c choice) asks(provider string, ps []namedProvider) bool {
	return len(c) == 0 || slices.ContainsFunc(c, func(name string) bool {
		return name == provider || !slices.ContainsFunc(ps, func(p namedProvider) bool { return p.name == name })
	})
}

// of returns the devices that are chosen, in the order of the choices.
func (c choice) of(all []DeviceInfo) []DeviceInfo {
	if len(c) == 0 {
		return all
	}
	all = slices.DeleteFunc(all, func(d DeviceInfo) bool { return c.place(&d) < 0 })
	slices.SortStableFunc(all, func(a, b DeviceInfo) int { return c.place(&a) - c.place(&b) })
	return all
}

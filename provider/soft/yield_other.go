//go:build !linux

package soft

// yield would give the core to another thread. Go has no way to ask for that here.
func yield() {}

//go:build !linux

package user

// readView: other systems have no user namespaces.
func readView() view { return view{whole: true} }

//go:build !linux || adverb_portable

package transport

const canStore = false

func (e *node) storeInFile() { e.t.Skip("memory of files is built for Linux") }

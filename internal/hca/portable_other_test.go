//go:build !linux || adverb_portable

package hca

// portable says that links are those of package net, as on systems other than Linux.
const portable = true

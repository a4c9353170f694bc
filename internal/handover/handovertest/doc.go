// Package handovertest has what the tests of descriptors that go from process to process share, on Linux.
package handovertest

// Package handovertest has the common helpers of tests in which descriptors go from process to process, on Linux.
package handovertest

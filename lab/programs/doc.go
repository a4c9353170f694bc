// Package programs has no code beside its tests: they run unmodified programs in C and Python, from Debian's packages,
// under "adverb run". docs/RUN.md lists the programs with their results.
//
// The packages are unpacked into a tree, and nothing is installed. The programs run in that tree by chroot, as a user
// without capabilities, in namespaces of processes, mounts and the network that belong to the tests. The tests need
// root to make these: make programs.
package programs

// Package usertest runs tests as other users, in user namespaces, and under limits of the host. Root has rights that no
// user has, and so a test of who may do what that runs as root alone shows little. Limits hold for a whole process, so a
// test that meets one has a process of its own. It is for Linux.
package usertest

// Package usertest runs tests as other users, and in user namespaces. Root has rights that no user has, and so a test of
// who may do what that runs as root alone shows little. It is for Linux.
package usertest

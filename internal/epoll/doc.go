// Package epoll makes epoll sets for which Go's network poller waits. Sockets in such a set are unknown to that
// poller. If they were known, then all that comes would wake a thread of it, also while a program polls busily and
// finds it anyway. Linux alone has them.
package epoll

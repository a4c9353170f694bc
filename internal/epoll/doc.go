// Package epoll waits for many sockets at once, by Linux's epoll, without giving them to Go's network poller.
//
// Only the epoll set itself is known to that poller. If each socket were, then whatever comes would wake one of the
// poller's threads, even while a program polls busily and finds it anyway.
package epoll

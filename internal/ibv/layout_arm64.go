//go:build linux

package ibv

const mutexSize = 48 // sizeof(pthread_mutex_t) of glibc

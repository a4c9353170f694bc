//go:build linux

package ibv

const mutexSize = 48 // sizeof(pthread_mutex_t) of glibc

const condSize = 48 // sizeof(pthread_cond_t) of glibc

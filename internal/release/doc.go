// Package release stores words for others to see, in order, and no more than that.
//
// A store of package sync/atomic is sequentially consistent: no load that follows it is done before others see it. On
// x86 that takes an instruction that waits until all stores before it have reached the cache, which costs some 8 ns and,
// where a cache line has to come from another processor, as long as that takes. Whoever publishes a count, and does not
// look then at what others have published, needs only that what was stored before is seen before. There Store does it.
package release

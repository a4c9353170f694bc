package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
)

// A bucket holds one key and its value:
//
//	0 checksum of the rest (4)   4 length of the key (2)   6 length of the value (2)
//	8 version (8)                16 key, value
const (
	bucketSize = 256
	bucketHead = 16
	maxEntry   = bucketSize - bucketHead // bytes of a key and its value
	probes     = 16                      // buckets that a key may be in, one after the other
)

var (
	errTorn     = errors.New("the bucket was changed while it was read")
	errNotFound = errors.New("no such key")
	errTooLong  = fmt.Errorf("a key and its value have at most %d bytes together", maxEntry)
	errFull     = errors.New("the table is full")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// bucket is the content of a bucket; the version is 0 if the bucket is free.
type bucket struct {
	key, value string
	version    uint64
}

// decode reads a bucket. The checksum is over all of the bucket: neither cards nor software promise
// in which order the bytes of a READ are copied, so a version at either end would not do.
func decode(b []byte) (bucket, error) {
	sum := binary.LittleEndian.Uint32(b)
	k, v := int(binary.LittleEndian.Uint16(b[4:])), int(binary.LittleEndian.Uint16(b[6:]))
	version := binary.LittleEndian.Uint64(b[8:])
	if sum == 0 && version == 0 {
		return bucket{}, nil
	}
	if k+v > maxEntry || sum != crc32.Checksum(b[4:bucketSize], castagnoli) {
		return bucket{}, errTorn
	}
	return bucket{string(b[bucketHead : bucketHead+k]), string(b[bucketHead+k : bucketHead+k+v]), version}, nil
}

// encode writes a bucket over b. The key and the value fit.
func encode(b []byte, e bucket) {
	var n [bucketSize]byte // so that the time of a mixture of two states is as short as a copy
	binary.LittleEndian.PutUint16(n[4:], uint16(len(e.key)))
	binary.LittleEndian.PutUint16(n[6:], uint16(len(e.value)))
	binary.LittleEndian.PutUint64(n[8:], e.version)
	copy(n[bucketHead+copy(n[bucketHead:], e.key):], e.value)
	binary.LittleEndian.PutUint32(n[:], crc32.Checksum(n[4:], castagnoli))
	copy(b, n[:])
}

// place returns the i-th bucket in which a key may be.
func place(key string, i int, buckets uint64) uint64 {
	h := fnv.New64a()
	h.Write([]byte(key))
	return (h.Sum64() + uint64(i)) % buckets
}

// put changes the table of the server, which is the only one to write.
func put(table []byte, key, value string) error {
	if len(key)+len(value) > maxEntry {
		return errTooLong
	}
	buckets := uint64(len(table) / bucketSize)
	for i := range probes {
		b := table[place(key, i, buckets)*bucketSize:][:bucketSize]
		e, err := decode(b)
		if err != nil {
			return err
		}
		if e.version == 0 || e.key == key {
			encode(b, bucket{key, value, e.version + 1})
			return nil
		}
	}
	return errFull
}

// Package boltfile reads the file of a bbolt database without trusting it, before bbolt maps it: a
// damaged one makes bbolt read memory that is not there, or go round in circles, and neither can be
// survived. What is damaged is set aside under a name of its own.
//
// The file is pages; the first two describe the rest, and are written in turns. All numbers are in
// native order.
//
//	page     number uint64, flags uint16, count uint16, overflow uint32; elements; keys and values
//	branch   position uint32, key uint32, page uint64
//	leaf     flags uint32, position uint32, key uint32, value uint32
//	bucket   a value: page uint64, sequence uint64; a page of its own follows if the number is 0
//	meta     magic, version, page size, flags uint32; bucket; freelist, pages, transaction, checksum uint64
//
// https://github.com/etcd-io/bbolt/blob/v1.5.0/internal/common/page.go
package boltfile

// Package boltfile checks the file of a bbolt database before bbolt maps it. bbolt trusts the file: if
// the file is damaged, bbolt reads unmapped memory or loops, and the process cannot recover from
// either. A damaged file is set aside under another name.
//
// The file consists of pages. The first two are meta pages, which are written alternately. All
// numbers are in native byte order.
//
//	page     number uint64, flags uint16, count uint16, overflow uint32; elements; keys and values
//	branch   position uint32, key uint32, page uint64
//	leaf     flags uint32, position uint32, key uint32, value uint32
//	bucket   a value: page uint64, sequence uint64; if the page is 0, an inline page follows
//	meta     magic, version, page size, flags uint32; bucket; freelist, pages, transaction, checksum uint64
//
// https://github.com/etcd-io/bbolt/blob/v1.5.0/internal/common/page.go
package boltfile

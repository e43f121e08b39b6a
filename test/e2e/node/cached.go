package node

import (
	"os"

	"golang.org/x/sys/unix"
)

// Cached returns how many bytes of a file are in the page cache, rounded up to pages.
func Cached(f *os.File) (int, error) {
	var st unix.Cachestat_t
	err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &st, 0) // to the end
	return int(st.Cache) * os.Getpagesize(), err
}

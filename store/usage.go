package store

import (
	"context"
	"errors"
	"io/fs"
	"syscall"
)

// Usage is the disk use of a store, in bytes.
type Usage struct {
	Logical     int64 `json:"logical"`     // files of all complete tables, each as often as it occurs
	Unique      int64 `json:"unique"`      // objects on disk
	Saved       int64 `json:"saved"`       // what Logical would take more without sharing
	Reclaimable int64 `json:"reclaimable"` // objects without a reference
	Partial     int64 `json:"partial"`     // unfinished fetches, as allocated
	Objects     int64 `json:"objects"`     // count
	Free        int64 `json:"free"`        // on the file system
	Capacity    int64 `json:"capacity"`    // of the file system
}

// Usage returns the disk use.
func (s *Store) Usage(ctx context.Context) (Usage, error) {
	r, err := s.objects.Usage(collector{s})
	if err != nil {
		return Usage{}, err
	}
	u := Usage{
		Logical: r.Logical, Unique: r.Unique, Saved: max(0, r.Logical-r.Shared), Reclaimable: r.Reclaimable, Objects: r.Objects,
	}
	if u.Partial, err = s.allocated(partialDir); err != nil {
		return u, err
	}
	u.Free, u.Capacity, err = s.free()
	return u, err
}

// allocated returns the bytes that the files below a directory take on the disk.
func (s *Store) allocated(name string) (n int64, err error) {
	err = fs.WalkDir(s.root.FS(), name, func(_ string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			n += st.Blocks * 512
		}
		return nil
	})
	return n, err
}

// staged returns the bytes that a directory of unfinished work has on the disk.
func (s *Store) staged(name string) int64 {
	n, err := s.allocated(name)
	if err != nil {
		return 0
	}
	return n
}

package object_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/internal/object"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// TestCheckOneReadsAgain: an error of a read without the page cache, whichever it is, is no verdict.
func TestCheckOneReadsAgain(t *testing.T) {
	s, db, root := empty(t)
	p := make([]byte, 3<<20)
	d := digest.FromBytes(p)
	if _, err := s.Put(meta.Arrival{}, p); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root.Name(), object.Path(d))
	if f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0); err != nil {
		t.Skip("the file system has no O_DIRECT: ", err)
	} else {
		f.Close()
	}
	direct := 0
	bad, err := s.CheckOne(t.Context(), meta.Sized{Digest: d, Size: int64(len(p))}, func(n int64) {
		if direct++; direct > 1 {
			return
		}
		if err := breakReads(path); err != nil {
			t.Error(err)
		}
	})
	if bad != nil || err != nil || direct < 3 {
		t.Errorf("%+v, %v, %d reads", bad, err, direct)
	}
	if _, err := db.Object(d); err != nil {
		t.Error(err)
	}
}

// breakReads has the reads of a file that this process has open fail with EBADF.
func breakReads(path string) error {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	for _, e := range fds {
		var fd int
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err != nil || to != path {
			continue
		}
		if _, err := fmt.Sscan(e.Name(), &fd); err != nil {
			return err
		}
		return unix.Dup3(int(null.Fd()), fd, unix.O_CLOEXEC)
	}
	return fmt.Errorf("%s is not open", path)
}

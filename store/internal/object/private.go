package object

import (
	"errors"
	"os"
	"strings"

	"github.com/ballast-dev/ballast/store/internal/meta"
	"golang.org/x/sys/unix"
)

// xattrPrivate is the attribute of an object's file with Object.Private, one name for each line, at
// the time when the file became an object. It is used if the record is lost. Containers see the
// attributes of stubs, not of objects.
const xattrPrivate = "trusted.ballast.private"

// markPrivate sets the sources that may have a file. Names that the file system has no room for are
// replaced by meta.Nobody: only the record has them then.
func (s *Objects) markPrivate(name string, sources []string) error {
	if len(sources) == 0 {
		return nil
	}
	f, err := s.o.Root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	set := func(value string) error { return unix.Fsetxattr(int(f.Fd()), xattrPrivate, []byte(value), 0) }
	err = set(strings.Join(sources, "\n"))
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ERANGE) {
		err = set(meta.Nobody)
	}
	return err
}

// privateOf returns the sources set by markPrivate; meta.Nobody if they cannot be read.
func privateOf(f *os.File) []string {
	p := make([]byte, maxPrivate)
	n, err := unix.Fgetxattr(int(f.Fd()), xattrPrivate, p)
	switch {
	case errors.Is(err, unix.ENODATA):
		return nil
	case err != nil || n == 0:
		return []string{meta.Nobody}
	}
	return strings.Split(string(p[:n]), "\n")
}

// maxPrivate limits the value of the attribute, in bytes.
const maxPrivate = 64 << 10

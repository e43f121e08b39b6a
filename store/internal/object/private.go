package object

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// xattrPrivate is the attribute of an object's file with Object.Private, one name for each line, at
// the time when the file became an object. It is used if the record is lost. Containers see the
// attributes of stubs, not of objects.
const xattrPrivate = "trusted.ballast.private"

// markPrivate sets the sources that may have a file.
func (s *Objects) markPrivate(name string, sources []string) error {
	if len(sources) == 0 {
		return nil
	}
	f, err := s.o.Root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.Fsetxattr(int(f.Fd()), xattrPrivate, []byte(strings.Join(sources, "\n")), 0)
	if errors.Is(err, unix.ENOTSUP) { // then only the record has them
		return nil
	}
	return err
}

// privateOf returns the sources set by markPrivate.
func privateOf(f *os.File) []string {
	p := make([]byte, maxPrivate)
	n, err := unix.Fgetxattr(int(f.Fd()), xattrPrivate, p)
	if err != nil || n == 0 {
		return nil
	}
	return strings.Split(string(p[:n]), "\n")
}

// maxPrivate limits the value of the attribute, in bytes.
const maxPrivate = 64 << 10

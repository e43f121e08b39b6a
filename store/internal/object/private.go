package object

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// xattrPrivate is the attribute of an object's file that has Object.Private as it was when the file became an
// object, one name a line: the database can be lost, or not know of it yet. Containers see the attributes
// of stubs, not of objects.
const xattrPrivate = "trusted.ballast.private"

// markPrivate says on a file who may have it.
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
	if errors.Is(err, unix.ENOTSUP) { // then the database alone knows
		return nil
	}
	return err
}

// privateOf returns what markPrivate said on a file.
func privateOf(f *os.File) []string {
	p := make([]byte, maxPrivate)
	n, err := unix.Fgetxattr(int(f.Fd()), xattrPrivate, p)
	if err != nil || n == 0 {
		return nil
	}
	return strings.Split(string(p[:n]), "\n")
}

// maxPrivate is the largest value of an attribute, in bytes.
const maxPrivate = 64 << 10

package boltfile

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Locked returns the error for a file that another process has locked, with its id if it can be found.
func Locked(path string) error {
	var st unix.Stat_t
	locks, err := os.ReadFile("/proc/locks")
	if err = errors.Join(err, unix.Stat(path, &st)); err != nil {
		locks = nil // only for the id
	}
	process := "another process"
	inode := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range strings.Lines(string(locks)) {
		// 1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE FIRST LAST
		if f := strings.Fields(line); len(f) > 5 && f[1] == "FLOCK" && f[5] == inode && f[4] > "0" {
			process = "process " + f[4]
		}
	}
	return fmt.Errorf("%s has it open: %w", process, errdefs.ErrUnavailable)
}

package kubelet

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == providerName {
		if err := provide(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(node.Suite{First: []string{"TestRestarts"}, Prepare: isolate}.Main(m))
}

// diskSize is the size of the file system for all files, in bytes.
const diskSize = 2 << 30 // 2 GiB; the file is sparse

// isolate hides the machine's directories and settings from the kubelet, in the mount namespace of the
// test, and makes the file system for temporary files.
func isolate() error {
	outer := os.TempDir()
	if _, err := node.HideSysctls(outer); err != nil {
		return err
	}
	for _, dir := range []string{"/var/lib", "/var/log"} { // the kubelet has directories there that no option moves
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
			return fmt.Errorf("hide %s: %w", dir, err)
		}
	}
	disk, dir := filepath.Join(outer, "disk.img"), filepath.Join(outer, "d")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := node.Disk(disk, diskSize, dir, "loop"); err != nil {
		return err
	}
	return os.Setenv("TMPDIR", dir)
}

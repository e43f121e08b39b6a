package e2e

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"golang.org/x/sys/unix"
)

// Request FIEMAP, without the flag that syncs the file.
// https://github.com/torvalds/linux/blob/v6.18/include/uapi/linux/fiemap.h
const (
	fsFiemap  = 0xc020660b // _IOWR('f', 11, struct fiemap)
	delalloc  = 0x4        // FIEMAP_EXTENT_DELALLOC: the data are in memory only
	maxExtent = 64
)

type fiemap struct {
	start, length           uint64
	flags, mapped, count, _ uint32
	extents                 [maxExtent]struct {
		logical, physical, length uint64
		_                         [2]uint64
		flags                     uint32
		_                         [3]uint32
	}
}

// inMemory reports whether data of a file have no place on the disk yet: a power cut loses them.
func inMemory(t *testing.T, path string) bool {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m := fiemap{length: 1<<64 - 1, count: maxExtent}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fsFiemap, uintptr(unsafe.Pointer(&m))); errno != 0 {
		t.Fatalf("extents of %s: %v", path, errno)
	}
	for _, e := range m.extents[:m.mapped] {
		if e.flags&delalloc != 0 {
			return true
		}
	}
	return false
}

// ext4 mounts a new file system of its own at a directory.
func ext4(t *testing.T, dir string) {
	t.Helper()
	if err := node.Disk(filepath.Join(t.TempDir(), "disk"), 512<<20, dir, "loop"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// TestSyncedImages pulls an ordinary image with the setting that doctor and contrib/docs/storage.md name:
// when a pull returns, all files are on the disk. Both ways of pulling are passed on by ballast's differ.
func TestSyncedImages(t *testing.T) {
	for _, tt := range []struct{ name, setting, says string }{
		{"sync_fs", "[plugins.\"io.containerd.service.v1.diff-service\"]\nsync_fs = true\n", "the layers of ordinary images are synced"},
		{"image_pull_with_sync_fs", "[plugins.\"io.containerd.cri.v1.images\"]\nimage_pull_with_sync_fs = true\n", "the layers of ordinary images of pods are synced"},
		{"usual", "", `[plugins."io.containerd.service.v1.diff-service"] sync_fs = true prevents that`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := node.StartNode(t, node.Options{Containerd: tt.setting})
			n.Ballastd.Stop(t)
			ext4(t, n.Root())
			n.StartBallastd(t)
			if out := doctor(n); out.Err != nil || !strings.Contains(out.Stdout, tt.says) {
				t.Errorf("doctor does not say %q: %v\n%s", tt.says, out.Err, out.Output())
			}
			if tt.setting == "" {
				return // it depends on the kernel when the files are written
			}
			artifact, _ := tenLayers(t)
			n.Registry.Push(t, "ordinary/layers", "1", artifact)
			ref := n.Registry.Ref("ordinary/layers", "1")
			if tt.name == "sync_fs" {
				if out := n.Pull("ballast", ref); out.Err != nil {
					t.Fatalf("%v\n%s", out.Err, out.Output())
				}
			} else if _, err := n.CRI(t).Pull(ref, ""); err != nil {
				t.Fatal(err)
			}
			files := 0
			err := filepath.WalkDir(filepath.Join(n.Root(), "snapshots"), func(path string, e fs.DirEntry, err error) error {
				if err != nil || !e.Type().IsRegular() || !strings.Contains(path, "/fs/") {
					return err
				}
				files++
				if inMemory(t, path) {
					t.Errorf("%s is not on the disk", path)
				}
				return nil
			})
			if err != nil || files < 20 {
				t.Errorf("%d files, %v", files, err)
			}
		})
	}
}

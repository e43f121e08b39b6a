package disktest_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store/storetest/disktest"
	"golang.org/x/sys/unix"
)

// TestDisk checks that a Disk fails as it is told, and that the kernel tells what uses it.
func TestDisk(t *testing.T) {
	for fstype, size := range map[string]int64{"ext4": 64 << 20, "xfs": 320 << 20} {
		t.Run(fstype, func(t *testing.T) { testDisk(t, disktest.New(t, fstype, t.TempDir(), size)) })
	}
}

func testDisk(t *testing.T, d *disktest.Disk) {
	const size = 2 << 20
	name := filepath.Join(d.Dir, "file")
	write := func(name string, b byte) error {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = f.Write(bytes.Repeat([]byte{b}, size))
		return errors.Join(err, f.Sync(), f.Close())
	}
	check := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	check("write", write(name, 1), nil)
	check("other", os.WriteFile(name+"2", []byte("not synced"), 0o600), nil)
	d.Cut(func() bool { return false })
	if b, err := os.ReadFile(name); err != nil || !bytes.Equal(b, bytes.Repeat([]byte{1}, size)) {
		t.Errorf("after a power cut: %d bytes, %v", len(b), err)
	}
	if _, err := os.Stat(name + "2"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was not synced: %v", err)
	}

	d.Spoil(name, size/2+5)
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	one := make([]byte, 1)
	_, err = f.ReadAt(one, size/2)
	check("read of a bad sector", err, unix.EIO)
	_, err = f.ReadAt(one, 0)
	check("read beside it", err, nil)
	_, err = f.WriteAt(make([]byte, 8<<10), size/2)
	check("write over it", errors.Join(err, f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)), nil)
	_, err = f.ReadAt(one, size/2)
	check("read of what was written over it", err, nil)

	d.Hang()
	synced := make(chan error, 1)
	go func() { synced <- write(name+"3", 3) }()
	select {
	case err := <-synced:
		t.Errorf("synced by a disk that hangs: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	d.Resume()
	check("after that", <-synced, nil)

	d.FailWrites(1)
	check("a failed write", write(name, 4), unix.EIO)
	d.FailFlushes(1 << 20)
	if err := write(name, 5); err == nil {
		t.Error("a failed flush is not told")
	}
}

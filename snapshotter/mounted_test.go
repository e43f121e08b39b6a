package snapshotter

import (
	"path/filepath"
	"strconv"
	"testing"
)

// TestMountTablesOnce: of the processes in a mount namespace, which are many, one is searched for mounts, and
// those that see other mounts because their root is another directory.
func TestMountTablesOnce(t *testing.T) {
	const (
		host   = "22 1 8:1 / / rw - ext4 /dev/sda rw\n"
		jailed = "40 22 8:1 /jail / rw - ext4 /dev/sda rw\n"
		mount  = " 22 0:9 / /mnt rw - overlay overlay rw,lowerdir=/root/snapshots/"
	)
	f := &mountFinder{dir: "/root/snapshots", ids: map[string]bool{"1": true, "2": true, "3": true}, found: map[string]bool{}, seen: map[string]bool{}}
	dir := t.TempDir()
	for i, table := range []string{"", jailed, host + "50" + mount + "1/fs\n", host + "51" + mount + "2/fs\n", "60" + mount + "3/fs\n"} {
		path := filepath.Join(dir, strconv.Itoa(i))
		write(t, path, table)
		if err := f.read(path); err != nil {
			t.Error(err)
		}
	}
	if !f.found["1"] || f.found["2"] || !f.found["3"] {
		t.Errorf("found %v, want 1 and 3; 2 is in a table that is like one before", f.found)
	}
}

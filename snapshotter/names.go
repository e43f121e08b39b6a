package snapshotter

import (
	"path/filepath"
	"strings"
)

// Names directly below the root. Databases that were set aside, or are being made, have the name
// of the database with a suffix that starts with a dot.
const (
	snapshotsName = "snapshots" // of the overlay snapshotter
	hideName      = "hide"
	probePrefix   = "probe-" // temporary, see Probe
)

// Owns reports whether a snapshotter makes a name directly below its root.
func Owns(name string) bool {
	switch name {
	case snapshotsName, hideName, metadataName:
		return true
	}
	return strings.HasPrefix(name, metadataName+".") || strings.HasPrefix(name, probePrefix)
}

// Made reports whether a snapshotter of this package has used a directory. Other snapshotters use
// the same names for snapshots and metadata, but do not make the whiteout.
func Made(root string) bool { return isWhiteout(whiteout(filepath.Join(root, hideName))) }

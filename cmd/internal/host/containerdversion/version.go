package containerdversion

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"

	"github.com/containerd/errdefs"
)

// Version is a minor release of containerd, such as 2.3. Its patch releases do not differ in the
// properties below.
type Version struct{ Major, Minor int }

// The oldest and the newest tested version.
var (
	Oldest = Version{1, 7}
	Newest = Version{2, 4}
)

var versionRE = regexp.MustCompile(`^v?([0-9]{1,3})\.([0-9]{1,3})(?:[-.+~].*)?$`)

// Parse parses a version as written by containerd, its packages and users: "2.3", "v2.3.7",
// "1.7.35~ds1". It returns errdefs.ErrInvalidArgument for anything else.
func Parse(s string) (Version, error) {
	m := versionRE.FindStringSubmatch(s)
	if m == nil {
		return Version{}, fmt.Errorf("%q is not a version of containerd, such as 2.3: %w", s, errdefs.ErrInvalidArgument)
	}
	major, errMajor := strconv.Atoi(m[1])
	minor, errMinor := strconv.Atoi(m[2])
	if errMajor != nil || errMinor != nil {
		panic("internal error: the expression lets numbers through that are none")
	}
	return Version{major, minor}, nil
}

// String returns the version as "2.3".
func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// Before reports whether v is older than w.
func (v Version) Before(w Version) bool {
	return cmp.Or(cmp.Compare(v.Major, w.Major), cmp.Compare(v.Minor, w.Minor)) < 0
}

// MaxFormat returns the newest supported format of a configuration file.
func (v Version) MaxFormat() int {
	switch {
	case v.Before(Version{2, 0}):
		return 2
	case v.Before(Version{2, 3}):
		return 3
	}
	return 4
}

// MixesFormats reports whether the files of a configuration can have different formats.
func (v Version) MixesFormats() bool { return !v.Before(Version{2, 3}) }

// ReplacesTables reports whether the table of a plugin in an imported file replaces that of the
// importing file as a whole, so that a drop-in with one setting of CRI would lose all others.
// https://github.com/containerd/containerd/blob/v1.7.35/services/server/config/config.go
func (v Version) ReplacesTables() bool { return v.Before(Version{2, 0}) }

// ImageVolumes reports whether pods can have images as volumes.
func (v Version) ImageVolumes() bool { return !v.Before(Version{2, 1}) }

// SubPaths reports whether pods can mount a directory of an image. 2.1 mounts the whole image
// instead.
func (v Version) SubPaths() bool { return !v.Before(Version{2, 2}) }

// PullsByTransfer reports whether CRI pulls with the transfer service unless a setting prevents it.
func (v Version) PullsByTransfer() bool { return !v.Before(Version{2, 1}) }

// HandlerInRequest reports whether a pull for a pod gets its runtime handler from the request.
// Earlier versions need the annotation HandlerAnnotation on the pod.
func (v Version) HandlerInRequest() bool { return !v.Before(Version{2, 2}) }

// HandlerAnnotation is the annotation with the runtime handler of a pod, for pulls.
const HandlerAnnotation = "io.containerd.cri.runtime-handler"

// ReadsAnnotation reports whether pulls learn the runtime handler from HandlerAnnotation.
// https://github.com/containerd/containerd/blob/v2.4.2/internal/cri/annotations/annotations.go
func (v Version) ReadsAnnotation() bool { return v.Before(Version{2, 5}) }

// RuntimePlatforms reports whether the snapshotter of a runtime handler must be configured a second
// time, for pulls, in runtime_platforms. 1.7 does not support that table, and since 2.3 CRI fills
// it in itself.
func (v Version) RuntimePlatforms() bool { return v.Major == 2 && v.Minor < 3 }

// ConfigPathIsList reports whether the default of CRI's config_path is a list of two directories;
// before, it is empty.
func (v Version) ConfigPathIsList() bool { return !v.Before(Version{2, 2}) }

// MapsUsers reports whether mounts can be mapped for user namespaces: 1.7 does not support the
// mount options for it.
func (v Version) MapsUsers() bool { return !v.Before(Version{2, 0}) }

// MapsBelow reports whether the mapping includes mounts below the directory of the layers. Earlier
// versions leave them out.
// https://github.com/containerd/containerd/blob/v2.2.9/core/mount/mount_idmapped_linux.go
func (v Version) MapsBelow() bool { return !v.Before(Version{2, 3}) }

// StagesLayers reports whether a layer can be present when its snapshot is prepared, although it
// gets its parent at the commit. Only then may a snapshotter of remote layers have the capability
// "rebase", with which layers are unpacked in parallel.
// https://github.com/containerd/containerd/blob/v2.4.0/core/unpack/unpacker.go
func (v Version) StagesLayers() bool { return !v.Before(Version{2, 4}) }

// Sandbox returns the sandbox image of pods unless the configuration has another one.
// https://github.com/containerd/containerd/blob/v2.4.2/internal/cri/config/config.go
func (v Version) Sandbox() string {
	switch {
	case v.Before(Version{2, 0}):
		return "registry.k8s.io/pause:3.8"
	case v.Before(Version{2, 2}):
		return "registry.k8s.io/pause:3.10"
	case v.Before(Version{2, 3}):
		return "registry.k8s.io/pause:3.10.1"
	}
	return "registry.k8s.io/pause:3.10.2"
}

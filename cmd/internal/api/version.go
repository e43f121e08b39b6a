package api

import (
	"runtime"
	"runtime/debug"
)

// version is set at link time:
//
//	-ldflags "-X github.com/ballast-dev/ballast/cmd/internal/api.version=1.2.3"
var version string

// ThisVersion returns the version of this program.
func ThisVersion() Version {
	v := Version{Version: version, Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if v.Version == "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Revision = s.Value
		}
	}
	return v
}

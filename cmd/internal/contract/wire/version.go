package wire

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// Version identifies the running program.
type Version struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // the commit
	Date     string `json:"date,omitempty"`     // of the commit, in RFC 3339
	Go       string `json:"go"`
}

// A release sets these at link time:
//
//	-ldflags "-X github.com/ballast-dev/ballast/cmd/internal/contract/wire.version=v1.2.3 -X …/wire.revision=… -X …/wire.date=…"
//
// Otherwise they are what the go command has recorded.
var version, revision, date string

// ThisVersion returns the version of this program.
func ThisVersion() Version {
	v := Version{Version: version, Revision: revision, Date: date, Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Version = cmp.Or(v.Version, info.Main.Version)
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = cmp.Or(v.Revision, s.Value)
		case "vcs.time":
			v.Date = cmp.Or(v.Date, s.Value)
		}
	}
	return v
}

// Fields returns what is known of the version, as one line shows it: the version, the first digits of the
// commit, its day, and the version of Go.
func (v Version) Fields() []string {
	return []string{v.Version, v.commit(), v.day(), v.Go}
}

// Agent returns the User-Agent of requests to registries, such as "ballast/v1.2.3 (0123456789ab; 2026-11-23)".
func (v Version) Agent() string {
	if v.Revision == "" {
		return "ballast/" + v.Version
	}
	return fmt.Sprintf("ballast/%s (%s)", v.Version, strings.TrimSuffix(v.commit()+"; "+v.day(), "; "))
}

// commit returns the first 12 digits of the commit, and what follows it: "-dirty".
func (v Version) commit() string {
	id, more, _ := strings.Cut(v.Revision, "-")
	if id = id[:min(12, len(id))]; more != "" {
		id += "-" + more
	}
	return id
}

func (v Version) day() string {
	day, _, _ := strings.Cut(v.Date, "T")
	return day
}

package carton

import (
	"regexp"
	"slices"
	"strings"
)

// triple matches the form of a target triple: architecture, vendor, system, environment, format.
// Their values are not checked, because only a runner uses them.
var triple = regexp.MustCompile(`^[a-z0-9_.+]{1,32}(-[a-z0-9_.+]{1,32}){0,4}$`)

const (
	versionNumber = `(?:0|[1-9][0-9]{0,18})`
	versionAny    = `[*xX]`
	versionWord   = `[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*`
)

// comparator matches one comparator of a version requirement.
// https://docs.rs/semver/1.0.16/semver/struct.VersionReq.html
var comparator = regexp.MustCompile(`^(?:=|>=?|<=?|~|\^)? *` + versionNumber +
	`(?:\.` + versionAny + `(?:\.` + versionAny + `)?` +
	`|\.` + versionNumber + `(?:\.` + versionAny + `|\.` + versionNumber + `(?:-` + versionWord + `)?(?:\+` + versionWord + `)?)?)?$`)

// maxComparators limits the comparators of a requirement.
const maxComparators = 32

// isVersionReq reports whether s is a requirement on a semantic version.
func isVersionReq(s string) bool {
	s = strings.Trim(s, " ")
	if slices.Contains([]string{"*", "x", "X"}, s) {
		return true
	}
	parts := strings.Split(s, ",")
	return len(parts) <= maxComparators && !slices.ContainsFunc(parts, func(p string) bool {
		return len(p) > 256 || !comparator.MatchString(strings.Trim(p, " "))
	})
}

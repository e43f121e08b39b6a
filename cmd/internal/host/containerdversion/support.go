package containerdversion

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// support is what containerd's project does for a minor release.
type support struct {
	version Version
	until   time.Time // the last day on which it gets fixes
	only    string    // of what, if not of everything
	secure  int       // the patch release from which on it has the fixes of June 2026
}

// supports are the supported releases, oldest first. Those of June 2026 mend that labels of an image could run commands
// on the host (CVE-2026-53488), and two faults of checkpoints (CVE-2026-53492, CVE-2026-50195).
// https://github.com/containerd/containerd/blob/v2.4.2/RELEASES.md#current-state-of-containerd-releases
// https://github.com/advisories/GHSA-xhf5-7wjv-pqxp
var supports = []support{
	{Version{1, 7}, day(2026, time.September, 30), "Kubernetes 1.30 to 1.32", 33},
	{Version{2, 0}, day(2027, time.March, 31), "Kubernetes 1.33", 10},
	{Version{2, 1}, day(2026, time.July, 3), "", 9},
	{Version{2, 2}, day(2026, time.November, 6), "", 5},
	{Version{2, 3}, day(2028, time.April, 30), "", 2},
	{Version{2, 4}, day(2027, time.May, 16), "", 0},
}

func day(y int, m time.Month, d int) time.Time { return time.Date(y, m, d, 0, 0, 0, 0, time.UTC) }

var patchRE = regexp.MustCompile(`^v?[0-9]+\.[0-9]+\.([0-9]{1,4})`)

// Lacks returns what a node with a release of containerd, such as "2.3.1" or "1.7.24~ds1", does not get from the
// project of containerd at a time: fixes from now on, and known ones. Distributions may have their own.
func Lacks(release string, now time.Time) (lacks []string) {
	v, err := Parse(release)
	if err != nil {
		return nil
	}
	i := slices.IndexFunc(supports, func(s support) bool { return s.version == v })
	if i < 0 {
		return nil
	}
	s := supports[i]
	if m := patchRE.FindStringSubmatch(release); m != nil {
		if patch, err := strconv.Atoi(m[1]); err == nil && patch < s.secure {
			lacks = append(lacks, fmt.Sprintf("it lacks the security fixes of %s.%d (CVE-2026-53488 and others)", v, s.secure))
		}
	}
	if now.After(s.until.AddDate(0, 0, 1)) {
		lacks = append(lacks, "its project has given no fixes for "+v.String()+" since "+s.until.Format(time.DateOnly))
	}
	return lacks
}

// Advice returns the releases that are supported for everything at a time, newest last, or Newest if none is known.
func Advice(now time.Time) string {
	var names []string
	for _, s := range supports {
		if s.only == "" && now.Before(s.until) {
			names = append(names, fmt.Sprintf("%s.%d", s.version, s.secure))
		}
	}
	if names == nil {
		names = []string{Newest.String()}
	}
	return "containerd " + strings.Join(names, " or ") + " or later"
}

package containerdversion

import (
	"slices"
	"testing"
	"time"
)

func TestLacks(t *testing.T) {
	for _, tt := range []struct {
		release string
		now     time.Time
		want    []string
	}{
		{"2.3.2", day(2026, time.December, 1), nil},
		{"v2.4.0", day(2026, time.December, 1), nil},
		{"2.3.1", day(2026, time.December, 1), []string{"it lacks the security fixes of 2.3.2 (CVE-2026-53488 and others)"}},
		{"2.2.9", day(2026, time.November, 6), nil},
		{"2.2.9", day(2026, time.November, 8), []string{"its project has given no fixes for 2.2 since 2026-11-06"}},
		{"1.7.24~ds1", day(2026, time.December, 1), []string{"it lacks the security fixes of 1.7.33 (CVE-2026-53488 and others)", "its project has given no fixes for 1.7 since 2026-09-30"}},
		{"2.1", day(2026, time.December, 1), []string{"its project has given no fixes for 2.1 since 2026-07-03"}},
		{"2.9.0", day(2026, time.December, 1), nil},
		{"nonsense", day(2026, time.December, 1), nil},
	} {
		if got := Lacks(tt.release, tt.now); !slices.Equal(got, tt.want) {
			t.Errorf("%s at %s: got %q, want %q", tt.release, tt.now.Format(time.DateOnly), got, tt.want)
		}
	}
	for now, want := range map[time.Time]string{
		day(2026, time.December, 1): "containerd 2.3.2 or 2.4.0 or later", day(2027, time.June, 1): "containerd 2.3.2 or later",
		day(2028, time.May, 2): "containerd 2.4 or later",
	} {
		if got := Advice(now); got != want {
			t.Errorf("advice at %s: got %q, want %q", now.Format(time.DateOnly), got, want)
		}
	}
}

// TestSupports checks that there is a row for each release that is tested.
func TestSupports(t *testing.T) {
	if first, last := supports[0].version, supports[len(supports)-1].version; first != Oldest || last != Newest {
		t.Errorf("the releases are %s to %s, want %s to %s", first, last, Oldest, Newest)
	}
}

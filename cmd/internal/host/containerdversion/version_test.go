package containerdversion

import (
	"testing"

	"github.com/containerd/errdefs"
)

func TestParse(t *testing.T) {
	for s, want := range map[string]Version{
		"2.3": {2, 3}, "v2.3.7": {2, 3}, "1.7.35~ds1": {1, 7}, "2.10.0-rc.1": {2, 10}, "v2.2.4+unknown": {2, 2}, "1.6.20": {1, 6},
	} {
		if got, err := Parse(s); err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", s, got, err, want)
		}
		if got, err := Parse(want.String()); err != nil || got != want {
			t.Errorf("%v: got %v, %v from its own words", want, got, err)
		}
	}
	for _, s := range []string{"", "2", "v2", "2.", ".3", "2.3x", "x2.3", "2.-1", "9999.1", "2.3\n"} {
		if got, err := Parse(s); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: got %v, %v, want invalid argument", s, got, err)
		}
	}
}

func TestBefore(t *testing.T) {
	order := []Version{{1, 6}, {1, 7}, {2, 0}, {2, 4}, {2, 10}, {3, 0}}
	for i, v := range order {
		for j, w := range order {
			if got, want := v.Before(w), i < j; got != want {
				t.Errorf("%v before %v: got %v, want %v", v, w, got, want)
			}
		}
	}
}

func TestStagesLayers(t *testing.T) {
	for v, want := range map[Version]bool{{}: false, {1, 7}: false, {2, 3}: false, {2, 4}: true, {3, 0}: true} {
		if got := v.StagesLayers(); got != want {
			t.Errorf("%v: got %v, want %v", v, got, want)
		}
	}
}

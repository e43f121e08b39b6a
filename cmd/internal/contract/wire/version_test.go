package wire_test

import (
	"slices"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
)

func TestVersion(t *testing.T) {
	const id = "0123456789abcdef0123456789abcdef01234567"
	for _, tt := range []struct {
		v      wire.Version
		agent  string
		fields []string
	}{
		{wire.Version{Version: "v1", Go: "go1"}, "ballast/v1", []string{"v1", "", "", "go1"}},
		{wire.Version{Version: "v1", Revision: id}, "ballast/v1 (0123456789ab)", []string{"v1", "0123456789ab", "", ""}},
		{
			wire.Version{Version: "v1", Revision: id + "-dirty", Date: "2026-11-23T01:02:03Z", Go: "go1"},
			"ballast/v1 (0123456789ab-dirty; 2026-11-23)", []string{"v1", "0123456789ab-dirty", "2026-11-23", "go1"},
		},
	} {
		if got := tt.v.Agent(); got != tt.agent {
			t.Errorf("%+v: User-Agent %q, want %q", tt.v, got, tt.agent)
		}
		if got := tt.v.Fields(); !slices.Equal(got, tt.fields) {
			t.Errorf("%+v: fields %q, want %q", tt.v, got, tt.fields)
		}
	}
}

package doctor

import (
	"encoding/json"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go/features"
)

// The features that versions of runc print, shortened.
func TestMapsUsers(t *testing.T) {
	for name, test := range map[string]struct {
		features string
		want     bool
	}{
		"1.1.5": {`{"ociVersionMin":"1.0.0","ociVersionMax":"1.0.3","linux":{"namespaces":["user"]}}`, false},
		"1.2":   {`{"linux":{"mountExtensions":{"idmap":{"enabled":true}}}}`, true},
		"off":   {`{"linux":{"mountExtensions":{"idmap":{"enabled":false}}}}`, false},
		"none":  {`{}`, false},
	} {
		var f features.Features
		if err := json.Unmarshal([]byte(test.features), &f); err != nil {
			t.Fatal(err)
		}
		if got := mapsUsers(&f); got != test.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

func TestMapsVolumes(t *testing.T) {
	for version, want := range map[string]bool{
		"1.7.35": true, "2.0.14": true, "v2.1.6": false, "2.1.7": true, "v2.2.1+unknown": false, "2.2.2-rc.1": true, "2.3.0": true, "2.10.0": true, "": true,
	} {
		if got := mapsVolumes(version); got != want {
			t.Errorf("%q: got %t", version, got)
		}
	}
}

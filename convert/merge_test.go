package convert_test

import (
	"math"
	"reflect"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

func TestParamCount(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		n    uint64
		want string
	}{
		{0, ""}, {183, ""}, {999, ""}, {1000, "1K"}, {361_821_120, "361.8M"}, {1_235_814_400, "1.2B"},
		{8_030_261_248, "8B"}, {1_041_000_000_000, "1T"}, {math.MaxUint64, "18446.7Q"},
	} {
		if got := convert.ParamCount(tt.n); got != tt.want {
			t.Errorf("%d: got %q, want %q", tt.n, got, tt.want)
		}
	}
}

// fill sets all that can be set in v, texts to s, and flags to b.
func fill(v reflect.Value, s string, b bool) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), s, b)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), s, b)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), s, b)
	case reflect.String:
		v.SetString(s)
	case reflect.Bool:
		v.SetBool(b)
	}
}

func TestMergeConfig(t *testing.T) {
	t.Parallel()
	var origin, header convert.Config
	fill(reflect.ValueOf(&origin).Elem(), "origin", false)
	fill(reflect.ValueOf(&header).Elem(), "header", true)

	if diff := cmp.Diff(origin, convert.MergeConfig(origin, header)); diff != "" {
		t.Errorf("the origin does not win (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(origin, convert.MergeConfig(origin, convert.Config{})); diff != "" {
		t.Errorf("without a header (-want +got):\n%s", diff)
	}
	ids := convert.ModelFS{Type: "layers", DiffIDs: []digest.Digest{"sha256:1"}}
	want := header
	want.ModelFS = ids
	for _, c := range []*convert.Capabilities{nil, {}} {
		got := convert.MergeConfig(convert.Config{ModelFS: ids, Config: convert.ModelConfig{Capabilities: c}}, header)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the gaps are not filled (-want +got):\n%s", diff)
		}
	}
	got := convert.MergeConfig(convert.Config{}, convert.Config{})
	if diff := cmp.Diff(convert.Config{}, got); diff != "" {
		t.Errorf("of nothing (-want +got):\n%s", diff)
	}
}

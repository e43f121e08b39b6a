package converttest

import (
	"encoding/json"
	"strings"
	"testing"
)

// Member returns the JSON of the member at path, "a.b.c", of the JSON of v; empty if there is none.
func Member(t testing.TB, v any, path string) string {
	t.Helper()
	p, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	for key := range strings.SplitSeq(path, ".") {
		var o map[string]json.RawMessage
		if err := json.Unmarshal(p, &o); err != nil {
			t.Fatal(err)
		}
		if p = o[key]; p == nil {
			return ""
		}
	}
	return string(p)
}

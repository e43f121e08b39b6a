package remote_test

import (
	"compress/gzip"
	"fmt"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// referrersIndex lists manifests by artifact type.
func referrersIndex(types ...string) string {
	var l []string
	for i, t := range types {
		l = append(l, fmt.Sprintf(`{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"size":%d,"artifactType":%q}`, digest.FromString(fmt.Sprint(i, t)), i, t))
	}
	return `{"schemaVersion":2,"manifests":[` + strings.Join(l, ",") + `]}`
}

func TestReferrers(t *testing.T) {
	t.Parallel()
	of := digest.FromString("subject")
	for _, tt := range []struct {
		name  string
		api   func(w http.ResponseWriter, r *http.Request)
		tag   string
		limit int
		want  []string
		err   func(error) bool
	}{
		{name: "by the API", api: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, referrersIndex("a", "x", "b")) }, limit: 9, want: []string{"a", "b"}},
		{name: "compressed", limit: 9, want: []string{"a"}, api: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			fmt.Fprint(z, referrersIndex("a"))
			z.Close()
		}},
		{name: "no more than wanted", api: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, referrersIndex("a", "a", "a")) }, limit: 2, want: []string{"a", "a"}},
		{name: "by pages", limit: 9, want: []string{"a", "b"}, api: func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("last") == "" {
				w.Header().Set("Link", `<https://elsewhere.example/v2/x?last=1>; rel="next"`)
				fmt.Fprint(w, referrersIndex("a"))
				return
			}
			fmt.Fprint(w, referrersIndex("b"))
		}},
		{name: "pages without an end", limit: 9, want: []string{"a", "a", "a", "a"}, api: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Link", `</v2/x?last=1>; rel="next"`)
			fmt.Fprint(w, referrersIndex("a"))
		}},
		{name: "by the tag", api: http.NotFound, tag: referrersIndex("a"), limit: 9, want: []string{"a"}},
		{name: "by the tag, the API being refused", tag: referrersIndex("b"), limit: 9, want: []string{"b"}, api: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) }},
		{name: "none", api: http.NotFound, limit: 9},
		{name: "none of the types", api: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, referrersIndex("x")) }, limit: 9},
		{name: "not allowed", api: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, limit: 9, err: errdefs.IsPermissionDenied},
		{name: "no list", api: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }, limit: 9, err: errdefs.IsInvalidArgument},
		{name: "too long", api: func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, 9<<20)) }, limit: 9, err: errdefs.IsInvalidArgument},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t)
			u.Before(func(w http.ResponseWriter, r *http.Request) bool {
				ok := r.URL.Path == "/v2/org/model/referrers/"+of.String()
				if ok {
					tt.api(w, r)
				}
				return ok
			})
			if tt.tag != "" {
				u.putManifest(remote.ReferrersTag(of), []byte(tt.tag))
			}
			all, err := u.repository(t, remote.Options{}, nil).Referrers(t.Context(), of, tt.limit, "a", "b")
			if tt.err != nil {
				if !tt.err(err) {
					t.Fatalf("error %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, d := range all {
				got = append(got, d.ArtifactType)
			}
			if diff := cmp.Diff(got, tt.want); diff != "" {
				t.Errorf("referrers (-got +want):\n%s", diff)
			}
		})
	}
}

// TestReferrersMemory: a list costs about its length, not as much as the descriptors that it may have.
func TestReferrersMemory(t *testing.T) {
	of := digest.FromString("subject")
	list := []byte(`{"manifests":[` + strings.Repeat("{},", 2_500_000) + `{"artifactType":"a"}]}`)
	u := newUpstream(t)
	u.Before(func(w http.ResponseWriter, r *http.Request) bool {
		w.Write(list)
		return true
	})
	r := u.repository(t, remote.Options{}, nil)
	live := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapSys
	}
	debug.FreeOSMemory()
	before := live()
	all, err := r.Referrers(t.Context(), of, 9, "a")
	if err != nil || len(all) != 1 {
		t.Fatalf("%d referrers, %v", len(all), err)
	}
	if n := live() - before; n > 100<<20 {
		t.Errorf("a list of %d bytes costs %d MiB", len(list), n>>20)
	}
}

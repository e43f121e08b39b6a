package origins

import (
	"maps"
	"slices"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/host/ctrd"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// TestPinImages pins the images of models, by the names that CRI gives to their configs, and leaves those alone that others
// have pinned.
func TestPinImages(t *testing.T) {
	r := newRig(t)
	store := metadata.NewImageStore(r.containerd.db)
	labels := func(name string) map[string]string {
		im, err := store.Get(inPods(t.Context()), name)
		ok(t, err)
		return im.Labels
	}
	ours, theirs := converttest.ModelPackRaw(converttest.Files(nil)), converttest.DockerAIGGUF(converttest.Files(nil))
	r.containerd.pull(t, r.registry+"/ours", ours)
	r.containerd.pull(t, r.registry+"/theirs", theirs)
	id, other := configOf(t, ours).String(), configOf(t, theirs).String()
	_, err := store.Update(inPods(t.Context()), images.Image{Name: other, Labels: map[string]string{ctrd.LabelPinned: ctrd.ValuePinned}}, "labels."+ctrd.LabelPinned)
	ok(t, err)
	model, stranger, gone := digest.FromString("model"), digest.FromString("stranger"), digest.FromString("gone")
	ok(t, r.Containerd.MarkImage(t.Context(), id, model))
	ok(t, r.Containerd.MarkImage(t.Context(), other, stranger))
	if err := r.Containerd.MarkImage(t.Context(), "none", gone); !errdefs.IsNotFound(err) {
		t.Errorf("mark an image that is not there: %v", err)
	}
	before := map[string]map[string]string{id: labels(id), other: labels(other)}
	has, err := r.Containerd.PinImages(t.Context(), map[digest.Digest]bool{model: true, stranger: true, gone: true})
	ok(t, err)
	if d := cmp.Diff(map[digest.Digest]bool{model: true, stranger: true}, has); d != "" {
		t.Errorf("models (-want +got):\n%s", d)
	}
	for _, name := range []string{id, other} {
		if labels(name)[ctrd.LabelPinned] != ctrd.ValuePinned {
			t.Errorf("%s is not pinned", name)
		}
	}
	_, err = r.Containerd.PinImages(t.Context(), nil)
	ok(t, err)
	for name, want := range before {
		if d := cmp.Diff(want, labels(name)); d != "" {
			t.Errorf("%s without pins (-want +got):\n%s", name, d)
		}
	}
	ok(t, r.Containerd.UnmarkImages(t.Context()))
	for name, want := range map[string][]string{id: nil, other: {ctrd.LabelPinned}} {
		if d := cmp.Diff(want, slices.Collect(maps.Keys(labels(name)))); d != "" {
			t.Errorf("%s without marks (-want +got):\n%s", name, d)
		}
	}
}

package jobs

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// applierFunc is a diff.Applier that calls itself.
type applierFunc func(ocispec.Descriptor) error

func (f applierFunc) Apply(_ context.Context, desc ocispec.Descriptor, _ []mount.Mount, _ ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	return desc, f(desc)
}

// Only some layers count as a model that containerd waits for.
func TestApplier(t *testing.T) {
	r := newPullRig(t)
	active := func() float64 {
		families, err := r.Metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "ballast_active_pulls" && m.GetLabel()[0].GetValue() == string(wire.KindContainerd) {
					return m.GetGauge().GetValue()
				}
			}
		}
		t.Fatal("no gauge")
		return 0
	}
	a := &Applier{Jobs: r.Jobs}
	for _, tt := range []struct {
		mediaType string
		fail      bool
		want      float64 // while it is being applied
	}{{filetable.MediaTypeTableLayer, false, 1}, {filetable.MediaTypeTableLayer, true, 1}, {filetable.MediaTypeBlobLayer, false, 0}, {ocispec.MediaTypeImageLayer, false, 0}} {
		failure := errors.New("no")
		a.Applier = applierFunc(func(ocispec.Descriptor) error {
			if got := active(); got != tt.want {
				t.Errorf("%s: %v active, want %v", tt.mediaType, got, tt.want)
			}
			if tt.fail {
				return failure
			}
			return nil
		})
		_, err := a.Apply(t.Context(), ocispec.Descriptor{MediaType: tt.mediaType, Digest: r.table}, nil)
		if tt.fail != errors.Is(err, failure) {
			t.Errorf("%s: got %v", tt.mediaType, err)
		}
	}
	if got := active(); got != 0 {
		t.Errorf("at the end: %v active", got)
	}
	// The format of an image from outside is not a label value, whoever pulls it; the formats of
	// ballast are.
	for _, format := range []string{"stranger 1", "ollama-list/mlx", "files", ""} {
		r.Metrics.Pull(wire.KindPrefetch)(format, nil)
	}
	families, err := r.Metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for _, f := range families {
		if f.GetName() != "ballast_pull_duration_seconds" {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			got[strings.Join(labels, " ")] = m.GetHistogram().GetSampleCount()
		}
	}
	// The format in the table was written by another converter, and is not one of ours.
	want := map[string]uint64{
		"by=containerd format=other result=ok": 1, "by=containerd format=other result=unknown": 1, "by=prefetch format=other result=ok": 1,
		"by=prefetch format=ollama-list result=ok": 1, "by=prefetch format=files result=ok": 1, "by=prefetch format=unknown result=ok": 1,
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("counts (got, want):\n%s", diff)
	}
}

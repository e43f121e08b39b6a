package chunkfile

import (
	"slices"
	"testing"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
)

// TestGroups wants the first chunk of a long file to be a group by itself, and others to share groups.
func TestGroups(t *testing.T) {
	for _, tt := range []struct {
		name  string
		sizes []int64 // of consecutive chunks, in KiB
		want  []int64 // offsets of groups, in KiB
	}{
		{"as written", []int64{256, 3840, 4096, 1024}, []int64{0, 256, 4096, 8192}},
		{"small chunks", []int64{64, 2048, 1024, 1024, 2048}, []int64{0, 64, 4160}},
		{"all in one group", []int64{256, 1024, 2048}, []int64{0}},
		{"one chunk", []int64{4096}, []int64{0}},
		{"no chunk", nil, []int64{}},
	} {
		f := filetable.File{Digest: digest.FromString(tt.name), Source: &filetable.Source{}}
		for _, n := range tt.sizes {
			f.Source.Chunks = append(f.Source.Chunks, filetable.Chunk{Offset: f.Size, Size: n << 10})
			f.Size += n << 10
		}
		got := NewLayout(f, filetable.Blob{Size: f.Size}, "").Grid()
		for i := range got {
			got[i] >>= 10
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: groups begin at %v KiB, want %v", tt.name, got, tt.want)
		}
	}
}

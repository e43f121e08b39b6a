package hydrate

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// table returns a table of files with the given parts.
func table(files ...[]filetable.Source) *filetable.Table {
	t := &filetable.Table{}
	seen := map[digest.Digest]bool{}
	for i, parts := range files {
		f := filetable.File{Path: fmt.Sprint("f", i), Type: filetable.TypeReg, Source: &filetable.Source{Parts: parts}}
		for _, p := range parts {
			f.Size += p.Size + int64(len(p.Inline))
			if p.Blob != "" && !seen[p.Blob] {
				seen[p.Blob] = true
				t.Blobs = append(t.Blobs, filetable.Blob{Digest: p.Blob, Size: 100, Archive: filetable.ArchiveFragments})
			}
		}
		t.Files = append(t.Files, f)
	}
	return t
}

// A decoded table is shared by all that use it, so a plan writes nothing into it, not even behind its slices.
func TestPlanDoesNotWrite(t *testing.T) {
	parts := make([]filetable.Source, 1, 2)
	parts[0] = filetable.Source{Blob: digest.FromString("blob"), Size: 10}
	tab := table(parts)
	tab.Files[0].Source.Codec = filetable.CodecZstd // something to see
	Plan(tab, "group")
	if behind := parts[:2][1]; !reflect.DeepEqual(behind, filetable.Source{}) {
		t.Errorf("%+v was written behind the parts", behind)
	}
}

// TestFetchHasItsDirectory: what is unpacked or verified in another way is staged in another directory.
func TestFetchHasItsDirectory(t *testing.T) {
	d, other := digest.FromString("blob"), digest.FromString("plain")
	dirs := map[string]filetable.Blob{}
	for _, b := range []filetable.Blob{
		{Archive: filetable.ArchiveTar, Codec: filetable.CodecGzip},
		{Archive: filetable.ArchiveTar, Codec: filetable.CodecZstd},
		{Archive: filetable.ArchiveTar, Codec: filetable.CodecGzip, DiffID: other},
		{Archive: filetable.ArchiveTar, Codec: filetable.CodecGzip, DiffID: d},
		{Archive: filetable.ArchiveTar},
		{Archive: filetable.ArchiveTar, DiffID: d},
		{Archive: filetable.ArchiveTar, Index: d},
	} {
		b.Digest, b.Size = d, 100
		dir := (&Target{Blob: b, group: "group"}).archiveDir()
		if same, ok := dirs[dir]; ok {
			t.Errorf("one directory for %+v and %+v", b, same)
		}
		dirs[dir] = b
	}
}

// Each range of a blob is staged once, in the first file that has it, and copied to the others.
func TestPlace(t *testing.T) {
	d := digest.FromString("blob")
	r := func(off, size int64) filetable.Source { return filetable.Source{Blob: d, Offset: off, Size: size} }
	inline := filetable.Source{Inline: []byte("abc")}
	type copied struct{ file, at, from, fromAt, size int64 }
	for name, tc := range map[string]struct {
		files  [][]filetable.Source
		pieces []staging.Piece // File is the position of the file
		copies []copied
		bad    bool
	}{
		"apart":          {[][]filetable.Source{{inline, r(50, 10)}, {r(0, 20)}}, []staging.Piece{{Off: 0, Size: 20, File: "1"}, {Off: 50, Size: 10, File: "0", At: 3}}, nil, false},
		"side by side":   {[][]filetable.Source{{r(10, 10), r(0, 10)}}, []staging.Piece{{Off: 0, Size: 10, File: "0", At: 10}, {Off: 10, Size: 10, File: "0"}}, nil, false},
		"twice in one":   {[][]filetable.Source{{r(0, 10), inline, r(0, 10)}}, []staging.Piece{{Size: 10, File: "0"}}, []copied{{0, 13, 0, 0, 10}}, false},
		"in two files":   {[][]filetable.Source{{inline, r(0, 10)}, {r(20, 5), r(0, 10)}}, []staging.Piece{{Size: 10, File: "0", At: 3}, {Off: 20, Size: 5, File: "1"}}, []copied{{1, 5, 0, 3, 10}}, false},
		"overlap":        {[][]filetable.Source{{r(0, 10)}, {r(9, 10)}}, nil, nil, true},
		"inside":         {[][]filetable.Source{{r(5, 1)}, {r(0, 10)}}, nil, nil, true},
		"the same start": {[][]filetable.Source{{r(5, 1), r(5, 2)}}, nil, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			var files []*assembly
			var parts []part
			index := map[string]int64{}
			for i, f := range table(tc.files...).Files {
				a := newAssembly(f, f.Path)
				files, index[a.staged] = append(files, a), int64(i)
				var at int64
				for _, src := range f.Source.Parts {
					if src.Blob != "" {
						parts = append(parts, part{a, src.Offset, src.Size, at})
					}
					at += src.Size + int64(len(src.Inline))
				}
			}
			pieces, err := place(parts)
			if tc.bad != (err != nil) || tc.bad && !errdefs.IsNotImplemented(err) {
				t.Fatalf("got %v", err)
			}
			for i := range pieces {
				pieces[i].File = fmt.Sprint(index[pieces[i].File])
			}
			if !reflect.DeepEqual(pieces, tc.pieces) {
				t.Errorf("got %+v, want %+v", pieces, tc.pieces)
			}
			n := 0
			for _, a := range files {
				n += len(a.copies)
			}
			if n != len(tc.copies) && !tc.bad {
				t.Errorf("%d copies, want %d", n, len(tc.copies))
			}
			for _, c := range tc.copies {
				if got := files[c.file].copies[c.at]; index[got.from] != c.from || got.at != c.fromAt || got.size != c.size {
					t.Errorf("got %+v, want %+v", got, c)
				}
				if files[c.from].copied != (c.from != c.file) {
					t.Errorf("file %d is copied: %t", c.from, files[c.from].copied)
				}
			}
		})
	}
}

package store

import (
	"slices"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
)

// A unit is what one job brings: a blob, or a file by its chunks.
type unit struct {
	blob   filetable.Blob  // for a file, the file as if it were a raw blob
	name   string          // the path of a file in it, for people
	file   *filetable.File // nil for a blob
	from   filetable.Blob  // the blob that the chunks of the file are in
	how    *chunked        // how file comes out of it
	lazy   *lazyFile       // of file, once that is known
	pieces []piece         // where a blob is staged, once that is known
}

// dir returns where a unit is staged, below the root.
func (u unit) dir() string {
	if u.how != nil {
		return chunkedDir(u.blob.Digest, u.how.recipe)
	}
	return partialName(u.blob.Digest)
}

// rank says when a unit is brought: the lower, the earlier. Small files of one bundle follow each
// other.
func (u unit) rank() int64 {
	if u.how != nil && u.how.bundle != nil {
		return u.how.bundle.at - filetable.MaxModel
	}
	return u.blob.Size
}

// unitsOf returns the units of a table, in the order of its blobs. A blob is brought whole unless
// all of its files have chunks.
func unitsOf(t *filetable.Table) []unit {
	names, files := map[digest.Digest]string{}, filesByBlob(t)
	for _, f := range t.Files {
		if f.Source == nil {
			continue
		}
		for _, src := range append(f.Source.Parts, *f.Source) {
			if src.Blob != "" && names[src.Blob] == "" {
				names[src.Blob] = f.Path
			}
		}
	}
	for _, u := range t.Unpacks {
		names[u.Blob] = u.As
	}
	var units []unit
	seen := map[digest.Digest]bool{}
	for _, b := range t.Blobs {
		if !inChunks(t, b, files[b.Digest]) {
			units = append(units, unit{blob: b, name: names[b.Digest]})
			continue
		}
		var together []*chunked
		for _, i := range files[b.Digest] {
			f := &t.Files[i]
			if f.Size == 0 || seen[f.Digest] {
				continue
			}
			seen[f.Digest] = true
			how := newChunked(*f, b)
			together = append(together, how)
			units = append(units, unit{blob: filetable.Blob{Digest: f.Digest, Size: f.Size, Layer: b.Layer}, name: f.Path, file: f, from: b, how: how})
		}
		bundleFiles(together)
	}
	// A content that comes by chunks too comes once.
	return slices.DeleteFunc(units, func(u unit) bool {
		return u.file == nil && u.blob.Archive == filetable.ArchiveNone && seen[u.blob.Digest]
	})
}

// inChunks says whether the files of a blob, given by their positions, are brought one by one.
func inChunks(t *filetable.Table, b filetable.Blob, files []int) bool {
	if b.Archive == filetable.ArchiveChunks {
		return true
	}
	some := false
	for _, i := range files {
		f := t.Files[i]
		if f.Size > 0 && len(f.Source.Chunks) == 0 {
			return false
		}
		some = some || f.Size > 0
	}
	return some
}

// filesByBlob returns the positions of the files of each blob.
func filesByBlob(t *filetable.Table) map[digest.Digest][]int {
	files := map[digest.Digest][]int{}
	for i, f := range t.Files {
		if f.Source != nil && f.Source.Blob != "" {
			files[f.Source.Blob] = append(files[f.Source.Blob], i)
		}
	}
	return files
}

// chunkedBlobs returns the blobs of a table whose files are brought one by one.
func chunkedBlobs(t *filetable.Table) map[digest.Digest]bool {
	files, out := filesByBlob(t), map[digest.Digest]bool{}
	for _, b := range t.Blobs {
		out[b.Digest] = inChunks(t, b, files[b.Digest])
	}
	return out
}

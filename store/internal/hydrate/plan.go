package hydrate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/chunkfile"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/opencontainers/go-digest"
)

// smallSpan is the largest span of a small file in its blob, in bytes. Neighbouring small files are
// one target, in ranges of at most a chunk.
const smallSpan = 512 << 10 // 512 KiB

// A Target is the unit of a fetch: a file with chunks, several neighbouring small files of a blob,
// or an archive.
type Target struct {
	Blob  filetable.Blob // for a file: the file as if it were a raw blob
	Name  string         // path of a file in it, for messages
	Files []ChunkedFile  // empty for an archive

	pieces []staging.Piece // where an archive is staged, once known
	group  string
	before []ChunkedFile // the file of a whole blob, if it was fetched by a chain before
}

// A ChunkedFile is a file with its layout in a blob.
type ChunkedFile struct {
	File   filetable.File
	Layout *chunkfile.Layout
}

// wrap adds the file of the model to an error.
func (t *Target) wrap(err error) error {
	if t.Name == "" {
		return fmt.Errorf("layer %d (%s): %w", t.Blob.Layer, t.Blob.Digest, err)
	}
	return fmt.Errorf("layer %d (%q): %w", t.Blob.Layer, t.Name, err)
}

// digests returns the known digests of the content of a target.
func (t *Target) digests() []digest.Digest {
	if len(t.Files) == 0 {
		return []digest.Digest{t.Blob.Digest}
	}
	out := make([]digest.Digest, len(t.Files))
	for i, f := range t.Files {
		out[i] = f.File.Digest
	}
	return out
}

// dirs returns where a target is staged, see staging.Area. For an archive this requires pieces.
func (t *Target) dirs() []string {
	if len(t.Files) == 0 {
		return []string{t.archiveDir()}
	}
	out := make([]string, len(t.Files))
	for i, f := range t.Files {
		out[i] = f.Layout.Dir(f.File.Digest)
	}
	return out
}

// archiveDir returns where an archive is staged. Until it is verified, its bytes belong to the
// group that fetched them. Fragments of one blob go to different places for different files, so
// each layout has its own directory. So has each diffID: it decides whether unpacked files are right.
func (t *Target) archiveDir() string {
	b := t.Blob
	layout := fmt.Sprintf("%s %s %s %s %s", b.Archive, b.Codec, b.Index, b.DiffID, staging.LayoutOf(t.pieces, nil))
	return staging.BlobDir(b.Digest, layout, t.group)
}

// key identifies a fetch: targets with the same key share one. No other fetch is staged in the directory of an archive.
func (t *Target) key() string { return strings.Join(t.dirs(), " ") }

// Plan returns the targets of a table from a group of sources (transfer.GroupKey), in the order of
// its blobs.
func Plan(t *filetable.Table, group string) []Target {
	files := filesByBlob(t)
	names := namesOf(t)
	var targets []Target
	seen := map[digest.Digest]bool{} // files with chunks that have digests
	for _, b := range t.Blobs {
		if !inChunks(t, b, files[b.Digest]) {
			continue
		}
		var all []ChunkedFile
		for _, i := range files[b.Digest] {
			f := t.Files[i]
			if f.Size == 0 || seen[f.Digest] {
				continue
			}
			seen[f.Digest] = true
			all = append(all, ChunkedFile{f, chunkfile.NewLayout(f, b, group)})
		}
		targets = append(targets, join(all, b)...)
	}
	for _, b := range t.Blobs {
		switch {
		case inChunks(t, b, files[b.Digest]):
		case b.Archive != filetable.ArchiveNone || b.Codec != filetable.CodecNone:
			targets = append(targets, Target{Blob: b, Name: names[b.Digest], group: group})
		case !seen[b.Digest]: // content that is also fetched by chunks is fetched once
			f := filetable.File{Path: names[b.Digest], Type: filetable.TypeReg, Size: b.Size, Digest: b.Digest}
			targets = append(targets, Target{Blob: b, Name: names[b.Digest], Files: []ChunkedFile{{f, chunkfile.NewRaw(b, group)}}})
		}
	}
	return targets
}

// join makes targets of the files with chunks of a blob.
func join(files []ChunkedFile, b filetable.Blob) (targets []Target) {
	single := func(f ChunkedFile) {
		targets = append(targets, Target{
			Blob: filetable.Blob{Digest: f.File.Digest, Size: f.File.Size, Layer: b.Layer}, Name: f.File.Path, Files: []ChunkedFile{f},
		})
	}
	var small []ChunkedFile
	for _, f := range files {
		if _, n := f.Layout.Span(); n > 0 && n <= smallSpan && f.Layout.Groups() == 1 {
			small = append(small, f)
		} else {
			single(f)
		}
	}
	start := func(f ChunkedFile) int64 { at, _ := f.Layout.Span(); return at }
	slices.SortFunc(small, func(a, b ChunkedFile) int { return cmp.Compare(start(a), start(b)) })
	for len(small) > 0 {
		n, end := 0, start(small[0])
		for _, f := range small {
			at, length := f.Layout.Span()
			if at-end > chunkfile.MaxGap || at+length-start(small[0]) > staging.ChunkSize {
				break
			}
			end = max(end, at+length)
			n++
		}
		if n == 1 {
			single(small[0])
		} else {
			t := Target{Blob: filetable.Blob{Digest: small[0].File.Digest, Layer: b.Layer}, Name: small[0].File.Path, Files: small[:n]}
			for _, f := range t.Files {
				t.Blob.Size += f.File.Size
			}
			targets = append(targets, t)
		}
		small = small[n:]
	}
	return targets
}

// namesOf returns a path for each blob, for messages.
func namesOf(t *filetable.Table) map[digest.Digest]string {
	names := map[digest.Digest]string{}
	for _, f := range t.Files {
		if f.Source == nil {
			continue
		}
		for _, part := range f.Source.Parts {
			names[part.Blob] = cmp.Or(names[part.Blob], f.Path)
		}
		names[f.Source.Blob] = cmp.Or(names[f.Source.Blob], f.Path)
	}
	for _, u := range t.Unpacks {
		names[u.Blob] = u.As
	}
	return names
}

// inChunks reports whether the files of a blob, given by their positions, are fetched individually.
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

// chunkedBlobs returns the blobs of a table whose files are fetched individually.
func chunkedBlobs(t *filetable.Table) map[digest.Digest]bool {
	files, out := filesByBlob(t), map[digest.Digest]bool{}
	for _, b := range t.Blobs {
		out[b.Digest] = inChunks(t, b, files[b.Digest])
	}
	return out
}

package hydrate

import "github.com/ballast-dev/ballast/store/filetable"

// Presence returns the size of a table, and how many bytes of it are present, in objects or staged
// by any group.
func (e *Engine) Presence(t *filetable.Table) (total, done int64, err error) {
	_, places, err := e.assemblies(t, "", nil)
	if err != nil {
		return 0, 0, err
	}
	for _, target := range Plan(t, "") {
		total += target.Blob.Size
		// An object of another size than in the table is useless.
		if ok, err := e.hasTarget(&target, places, nil); ok && err == nil {
			done += target.Blob.Size
			continue
		}
		n, err := e.staged(&target)
		if err != nil {
			return 0, 0, err
		}
		done += n
	}
	return total, done, nil
}

// staged returns the number of staged bytes of an incomplete target.
func (e *Engine) staged(t *Target) (n int64, err error) {
	if len(t.Files) == 0 {
		return e.most(t.Blob, nil)
	}
	for _, f := range t.Files {
		b := filetable.Blob{Digest: f.File.Digest, Size: f.File.Size}
		m, err := e.most(b, f.Layout.Grid())
		if err != nil {
			return 0, err
		}
		n += m
	}
	return n, nil
}

// most returns the largest number of staged bytes of a blob in one directory.
func (e *Engine) most(b filetable.Blob, grid []int64) (n int64, err error) {
	dirs, err := e.Area.Dirs(b.Digest)
	for _, dir := range dirs {
		n = max(n, e.Area.Marked(dir, b.Size, grid))
	}
	return n, err
}

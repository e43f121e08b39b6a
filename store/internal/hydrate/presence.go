package hydrate

import "github.com/ballast-dev/ballast/store/filetable"

// Presence returns how many bytes a table takes, and how many of these are there: in objects, or staged,
// whoever brought them.
func (e *Engine) Presence(t *filetable.Table) (total, done int64, err error) {
	_, places, err := e.assemblies(t, "", nil)
	if err != nil {
		return 0, 0, err
	}
	for _, target := range Plan(t, "") {
		total += target.Blob.Size
		// An object of another size than the table says is of no use.
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

// staged returns how many bytes of a target that is not complete are staged.
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

// most returns what is staged of a blob where most is.
func (e *Engine) most(b filetable.Blob, grid []int64) (n int64, err error) {
	dirs, err := e.Area.Dirs(b.Digest)
	for _, dir := range dirs {
		n = max(n, e.Area.Marked(dir, b.Size, grid))
	}
	return n, err
}

package convert

import (
	"fmt"
	"time"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
)

// maxMetadata limits the file metadata in an annotation, in bytes.
const maxMetadata = 64 << 10 // 64 KiB

// typeDir is the type flag of a directory in file metadata. Writers use the numbers 0, 2 and 5, not
// the characters of a tar header.
const typeDir = 5

// WithMetadata returns p with the mode, the owner and the time in the annotation of a raw layer. It returns
// errdefs.ErrInvalidArgument for metadata that is invalid or has another size than the layer.
// https://github.com/modelpack/model-spec/blob/v0.0.7/docs/annotations.md
func (p Place) WithMetadata(d Descriptor) (Place, error) {
	text := mediatype.Metadata(d.Annotations)
	if text == "" {
		return p, nil
	}
	if len(text) > maxMetadata {
		return p, fmt.Errorf("file metadata of %d bytes, more than %d: %w", len(text), maxMetadata, errdefs.ErrInvalidArgument)
	}
	o, err := ParseObject([]byte(text))
	if err != nil {
		return p, fmt.Errorf("file metadata: %w", err)
	}
	if size, ok := o.Int("size"); ok && size != d.Size {
		return p, fmt.Errorf("file metadata says %d bytes, the layer has %d: %w", size, d.Size, errdefs.ErrInvalidArgument)
	}
	if flag, _ := o.Int("typeflag"); flag == typeDir {
		return p, fmt.Errorf("file metadata says directory, the layer is one file: %w", errdefs.ErrInvalidArgument)
	}
	if mode, ok := o.Int("mode"); ok {
		p.Mode = uint32(mode & 0o777)
	}
	uid, _ := o.Int("uid")
	gid, _ := o.Int("gid")
	if p.UID, p.GID, err = filetable.Owner(uid, gid); err != nil {
		return p, fmt.Errorf("file metadata: %w", err)
	}
	if t, err := time.Parse(time.RFC3339, o.String("mtime")); err == nil && t.UTC().Year() >= 1970 && t.UTC().Year() <= 9999 {
		p.ModTime = t.UTC()
	}
	return p, nil
}

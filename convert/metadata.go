package convert

import (
	"fmt"
	"time"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/containerd/errdefs"
)

// maxMetadata limits the file metadata in an annotation, in bytes.
const maxMetadata = 64 << 10 // 64 KiB

// typeDir is the type flag of a directory in file metadata. Writers use the numbers 0, 2 and 5, not
// the characters of a tar header.
const typeDir = 5

// FileMetadata is the metadata of a raw layer's file, from an annotation. Owners are ignored: they
// are those of the machine that packed the model.
// https://github.com/modelpack/model-spec/blob/v0.0.7/docs/annotations.md
type FileMetadata struct {
	Mode    uint32 // permission bits; zero if unknown
	ModTime time.Time
}

// ParseFileMetadata returns the file metadata of a raw layer. It returns errdefs.ErrInvalidArgument
// for metadata that is invalid or has another size than the layer.
func ParseFileMetadata(d Descriptor) (FileMetadata, error) {
	text := mediatype.Metadata(d.Annotations)
	if text == "" {
		return FileMetadata{}, nil
	}
	if len(text) > maxMetadata {
		return FileMetadata{}, fmt.Errorf("file metadata of %d bytes, more than %d: %w", len(text), maxMetadata, errdefs.ErrInvalidArgument)
	}
	o, err := ParseObject([]byte(text))
	if err != nil {
		return FileMetadata{}, fmt.Errorf("file metadata: %w", err)
	}
	if size, ok := o.Int("size"); ok && size != d.Size {
		return FileMetadata{}, fmt.Errorf("file metadata says %d bytes, the layer has %d: %w", size, d.Size, errdefs.ErrInvalidArgument)
	}
	if flag, _ := o.Int("typeflag"); flag == typeDir {
		return FileMetadata{}, fmt.Errorf("file metadata says directory, the layer is one file: %w", errdefs.ErrInvalidArgument)
	}
	var m FileMetadata
	if mode, ok := o.Int("mode"); ok {
		m.Mode = uint32(mode & 0o777)
	}
	if t, err := time.Parse(time.RFC3339, o.String("mtime")); err == nil && t.UTC().Year() >= 1970 && t.UTC().Year() <= 9999 {
		m.ModTime = t.UTC()
	}
	return m, nil
}

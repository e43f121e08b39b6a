package convert

import (
	"context"
	"errors"
	"io"
	"slices"

	"github.com/ballast-dev/ballast/convert/chunked"
	"github.com/ballast-dev/ballast/store/filetable"
)

// A chunkedLayer is a compressed archive whose table of contents the manifest announces.
type chunkedLayer struct {
	layer int // the first layer with the blob
	as    []string
	again bool // the blob is several layers of a stack

	files [][]filetable.File // for each path in as; nil if the archive is unpacked as a whole
}

// maxLooked limits the files and chunks in all tables of contents that are read, and maxTables the
// memory that they take in turn, of tables that cannot be used too. Reading as many takes seconds.
const (
	maxLooked = 2 * chunked.MaxChunks
	maxTables = 2 * chunked.MaxMemory
)

// readChunks turns compressed archives with a usable table of contents into files with chunks.
// Other archives stay as they are, as does an archive that would make the file table too large.
// Tables of contents are read one after the other, because each can take more than 100 MiB of memory.
func (b *Builder) readChunks(ctx context.Context, a Artifact) error {
	chunks, entries, looked, taken := 0, 0, 0, int64(0)
	room := func(n int64) error {
		taken += n
		return TakeMemory(ctx, n)
	}
	for _, l := range b.announced() {
		if looked > maxLooked || taken > maxTables {
			return nil
		}
		if err := b.readTOC(ctx, a, &l, room); err != nil {
			return b.layerError(l.layer, err)
		}
		c, n := 0, 0
		for _, files := range l.files {
			for _, f := range files {
				if n++; f.Source != nil {
					c += len(f.Source.Chunks)
				}
			}
		}
		looked += c + n
		if l.files == nil || chunks+c > chunked.MaxChunks || entries+n > maxListed {
			continue
		}
		chunks, entries = chunks+c, entries+n
		b.addChunked(l)
	}
	return nil
}

// maxListed limits the files of all chunked archives: unlike those of other compressed archives
// they are in the file table.
const maxListed = chunked.MaxMembers

// announced returns the archives whose table of contents should be read.
func (b *Builder) announced() []chunkedLayer {
	var layers []chunkedLayer
	for _, u := range b.unpacks {
		blob := b.blobs[b.at[u.Blob]]
		if i := slices.IndexFunc(layers, func(l chunkedLayer) bool { return l.layer == blob.Layer }); i >= 0 {
			layers[i].as = append(layers[i].as, u.As)
			layers[i].again = layers[i].again || b.stacked
			continue
		}
		if chunked.Announced(b.chunkedLayer(blob)) {
			layers = append(layers, chunkedLayer{layer: blob.Layer, as: []string{u.As}})
		}
	}
	return slices.DeleteFunc(layers, func(l chunkedLayer) bool { return l.again })
}

func (b *Builder) chunkedLayer(blob filetable.Blob) chunked.Layer {
	return chunked.Layer{Digest: blob.Digest, Size: blob.Size, Codec: blob.Codec, Annotations: b.manifest.Layers[blob.Layer].Annotations}
}

// readTOC reads the table of contents of an archive.
func (b *Builder) readTOC(ctx context.Context, a Artifact, l *chunkedLayer, room chunked.Room) error {
	desc := b.manifest.Layers[l.layer].Descriptor
	r, err := a.BlobAt(ctx, desc)
	if err != nil {
		return err
	}
	if c, ok := r.(io.Closer); ok {
		defer c.Close()
	}
	l.files, err = chunked.Files(r, room, b.chunkedLayer(b.blobs[b.at[desc.Digest]]), l.as...)
	if errors.Is(err, chunked.ErrOpaque) {
		l.files = nil
		return nil
	}
	return err
}

// addChunked adds the files of a layer to the model.
func (b *Builder) addChunked(l chunkedLayer) {
	d := b.manifest.Layers[l.layer].Digest
	blob := &b.blobs[b.at[d]]
	blob.Archive, blob.Codec, blob.DiffID = filetable.ArchiveChunks, filetable.CodecNone, ""
	b.unpacks = slices.DeleteFunc(b.unpacks, func(u filetable.Unpack) bool { return u.Blob == d })
	for _, files := range l.files {
		for _, f := range files {
			b.files = append(b.files, placed{layer: l.layer, File: f})
		}
	}
}

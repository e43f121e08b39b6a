package carton

import (
	"archive/zip"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/opencontainers/go-digest"
	"github.com/pelletier/go-toml/v2"
)

// written is the content of a carton.toml for writing.
type written struct {
	SpecVersion int           `toml:"spec_version"`
	Name        string        `toml:"model_name,omitempty"`
	Title       string        `toml:"short_description,omitempty"`
	Description string        `toml:"model_description,omitempty"`
	License     string        `toml:"license,omitempty"`
	Repository  string        `toml:"repository,omitempty"`
	Homepage    string        `toml:"homepage,omitempty"`
	Runner      writtenRunner `toml:"runner"`
}

type writtenRunner struct {
	Name      string `toml:"runner_name"`
	Framework string `toml:"required_framework_version"`
	Compat    int64  `toml:"runner_compat_version"`
}

// describe returns the carton.toml of a model, and checks it.
func describe(cfg convert.Config, f format.Facts) ([]byte, *Info, error) {
	d := cfg.Descriptor
	p, err := toml.Marshal(written{
		SpecVersion: specVersion, Name: d.Name, Title: d.Title, Description: d.Description, License: strings.Join(d.Licenses, " AND "),
		Repository: d.SourceURL, Homepage: d.DocURL, Runner: writtenRunner{f.Runner, f.Framework, 1},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("encode %s: %w", nameInfo, err)
	}
	info, err := ParseInfo(p)
	return p, info, err
}

// encodeManifest returns MANIFEST, sorted by path.
func encodeManifest(entries []Entry) []byte {
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	var b strings.Builder
	for _, e := range entries {
		fmt.Fprintf(&b, "%s=%s\n", e.Path, e.Digest.Encoded())
	}
	return []byte(b.String())
}

// fromFiles returns the carton of a model whose files are blobs: they are below model/. The carton
// has the same blobs, so a holder of the model's bytes has those of the carton. It returns
// errdefs.ErrInvalidArgument for facts that are not valid in carton.toml, or a file that is not a
// blob.
func fromFiles(m *convert.Model, f format.Facts) (*convert.Model, error) {
	text, info, err := describe(m.Config, f)
	if err != nil {
		return nil, err
	}
	entries := []Entry{{nameInfo, digest.FromBytes(text)}}
	files := []filetable.File{inline(nameInfo, text)}
	for _, file := range m.Table.Files {
		if file.Type == filetable.TypeDir {
			continue
		}
		if file.Type != filetable.TypeReg || file.Digest == "" || file.Source.Blob != file.Digest {
			return nil, invalid("%q is not a blob", file.Path)
		}
		file.Path, file.Mode, file.UID, file.GID, file.ModTime = dirModel+file.Path, fileMode, 0, 0, time.Time{}
		entries = append(entries, Entry{file.Path, file.Digest})
		files = append(files, file)
	}
	c := &Carton{info: info, manifest: encodeManifest(entries)}
	c.hash = digest.FromBytes(c.manifest)
	out, err := c.model(files)
	if err != nil {
		return nil, err
	}
	out.ContextLength, out.Config = m.ContextLength, convert.MergeConfig(out.Config, m.Config)
	for i := range out.Table.Blobs {
		out.Table.Blobs[i].Layer = i
	}
	return out, nil
}

func bytesMember(name string, p []byte) format.File {
	open := func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(p)), nil }
	return format.File{Path: name, Size: int64(len(p)), Digest: digest.FromBytes(p), Open: open}
}

// Pack writes the archive of a carton, with its files unchanged, and returns its hash. With facts,
// files are those of the model and are stored below model/; without, they are those of a carton, of
// which only those in MANIFEST are written. It returns errdefs.ErrInvalidArgument for files that
// are not a carton, and *verify.Error for one that does not match its digest.
func Pack(ctx context.Context, w io.Writer, files []format.File, cfg convert.Config, f format.Facts) (digest.Digest, error) {
	files, err := filesToPack(ctx, files, cfg, f)
	if err != nil {
		return "", fmt.Errorf("carton: %w", err)
	}
	z := zip.NewWriter(w)
	for _, file := range files {
		if err := packMember(ctx, z, file); err != nil {
			return "", fmt.Errorf("carton: %q: %w", file.Path, err)
		}
	}
	return files[len(files)-1].Digest, z.Close()
}

// filesToPack returns the files of the archive, the last of which is MANIFEST.
func filesToPack(ctx context.Context, files []format.File, cfg convert.Config, f format.Facts) ([]format.File, error) {
	if f == (format.Facts{}) {
		return listed(ctx, files)
	}
	text, _, err := describe(cfg, f)
	if err != nil {
		return nil, err
	}
	out := []format.File{bytesMember(nameInfo, text)}
	for _, file := range files {
		file.Path = dirModel + file.Path
		out = append(out, file)
	}
	if len(out) == 1 {
		return nil, invalid("a model without files")
	}
	slices.SortFunc(out, func(a, b format.File) int { return strings.Compare(a.Path, b.Path) })
	var entries []Entry
	for _, file := range out {
		entries = append(entries, Entry{file.Path, file.Digest})
	}
	return append(out, bytesMember(nameManifest, encodeManifest(entries))), nil
}

// listed returns the files in MANIFEST, and MANIFEST.
func listed(ctx context.Context, files []format.File) ([]format.File, error) {
	at := map[string]format.File{}
	for _, file := range files {
		at[file.Path] = file
	}
	m, ok := at[nameManifest]
	if !ok {
		return nil, invalid("no %s: the model is not a carton", nameManifest)
	}
	r, err := m.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	p, err := verify.Read(r, m.Digest, m.Size, MaxManifestSize)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", nameManifest, err)
	}
	entries, err := parseManifest(p)
	if err != nil {
		return nil, err
	}
	var out []format.File
	for _, e := range entries {
		if at[e.Path].Digest != e.Digest {
			return nil, invalid("%q is not what %s lists", e.Path, nameManifest)
		}
		out = append(out, at[e.Path])
	}
	return append(out, bytesMember(nameManifest, p)), nil
}

// packMember writes one file, stored, so that it can be read by ranges.
func packMember(ctx context.Context, z *zip.Writer, file format.File) error {
	r, err := file.Open(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := z.CreateHeader(&zip.FileHeader{Name: file.Path, Method: zip.Store})
	if err != nil {
		return err
	}
	h := verify.NewHash()
	n, err := io.Copy(io.MultiWriter(w, h), r)
	return cmp.Or(err, verify.Compare(file.Digest, h.Digest(), file.Size, n))
}

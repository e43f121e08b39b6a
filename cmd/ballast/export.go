package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/layout"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/durable"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// An exporting is one run of "export".
type exporting struct {
	app     *app
	dir     string // that of additional_artifact_stores
	root    string // of ballastd
	private bool
	copies  bool
	rules   bool // the configuration has rules for signatures
}

func (a *app) exportCommand() *cobra.Command {
	x := exporting{app: a}
	var remove bool
	c := &cobra.Command{
		Use:   "export --artifact-store DIR REF...",
		Short: "give models of this node to CRI-O, without a copy",
		Long: `Write models of this node into a directory of additional_artifact_stores of CRI-O. Its files are hard links to those of
the store, so they take no space, and DIR must be on the file system of the root of ballastd; --copy copies them. A
pod of CRI-O that mounts REF then gets the model without a pull.

The model must be complete, and of a format whose layers are files with names: ModelPack with raw layers, Docker AI,
artifacts with titles. CRI-O unpacks no archives.

CRI-O gives what is in DIR to every pod, so a model that only credentials can read needs --private. It keeps what a
moved tag pointed to: export REF again after "ballast prefetch REF", and after "ballast verify --repair". "ballast rm"
frees no space while DIR has the files; --remove removes them.`,
		Example: "  ballast export --artifact-store /var/lib/ballast-artifacts ghcr.io/team/model:v1",
		Args:    modelArgs(1, 0),

		ValidArgsFunction: a.completes(0, modelRefs),
	}
	f := c.Flags()
	f.StringVar(&x.dir, "artifact-store", "", "`directory` that CRI-O has in additional_artifact_stores")
	f.BoolVar(&x.private, "private", false, "also give models to all pods that only credentials can read")
	f.BoolVar(&x.copies, "copy", false, "copy the files")
	f.BoolVar(&remove, "remove", false, "remove the models from the directory")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if x.dir == "" {
			return usage("--artifact-store is needed; \"ballast convert REF oci:DIR\" writes an OCI layout")
		}
		refs, err := references(cmd, args, "", parseRemote)
		if err != nil {
			return err
		}
		cfg, err := a.load()
		if err != nil {
			return err
		}
		x.root, x.rules = cfg.Root, len(cfg.Verify.Rule) > 0
		cl, err := a.client()
		if err != nil {
			return err
		}
		defer cl.Close()
		unlock, err := x.open()
		if err != nil {
			return err
		}
		defer unlock()
		return each(a, refs, func(ref remote.Ref) (err error) {
			if remove {
				err = x.remove(cmd.Context(), ref)
			} else {
				err = x.export(cmd.Context(), cl, ref)
			}
			if err != nil {
				return wire.About(ref.String(), err)
			}
			return nil
		})
	}
	return c
}

// artifacts is the layout in the directory.
// https://github.com/cri-o/cri-o/blob/f954a17e505f8931e91004403b5f5eac71ab6085/docs/crio.conf.5.md
func (x *exporting) artifacts() string { return filepath.Join(x.dir, "artifacts") }

// open makes the directory, if necessary, and locks it against other exports.
func (x *exporting) open() (unlock func(), err error) {
	if err := os.MkdirAll(x.artifacts(), 0o700); err != nil {
		return nil, err
	}
	for _, dir := range []string{x.dir, x.artifacts()} {
		info, err := os.Lstat(dir)
		if err != nil {
			return nil, err
		}
		owner, ok := info.Sys().(*syscall.Stat_t)
		if !ok || !info.IsDir() || int(owner.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
			return nil, fmt.Errorf("%s must be a directory of this user into which no other can write: pods get what is in it: %w", dir, errdefs.ErrFailedPrecondition)
		}
	}
	lock, err := os.Open(x.dir) // the layout locks its own directory
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("another export writes %s: %w", x.dir, errdefs.ErrFailedPrecondition)
	}
	if err := errors.Join(os.Chmod(x.artifacts(), 0o700), x.complete()); err != nil { // other users cannot read models
		lock.Close()
		return nil, err
	}
	return func() { lock.Close() }, nil
}

// indexLock is the file whose lock CRI-O takes to read the index.
// https://github.com/containers/container-libs/blob/common/v0.66.0/common/pkg/libartifact/store.go
const indexLock = "index.lock"

// complete makes a layout of what CRI-O makes of an empty directory.
func (x *exporting) complete() error {
	entries, err := os.ReadDir(x.artifacts())
	if err != nil || len(entries) == 0 {
		return err
	}
	for _, e := range entries {
		if e.Name() != indexLock && e.Name() != ocispec.ImageIndexFile {
			return nil // a layout, or what layout.Create refuses
		}
	}
	return durable.WriteFile(filepath.Join(x.artifacts(), ocispec.ImageLayoutFile), []byte(`{"imageLayoutVersion":"`+ocispec.ImageLayoutVersion+`"}`), 0o644)
}

// begun is the file with the manifests, as JSON, whose blobs an export writes or removes. The directory can have blobs
// of other programs, so only of these the next export removes what no manifest needs, if this one is killed.
func (x *exporting) begun() string { return filepath.Join(x.dir, ".ballast-export.json") }

// begin notes the manifests whose blobs are written or removed until end.
func (x *exporting) begin(manifests ...[]byte) error {
	p, err := json.Marshal(manifests)
	if err != nil {
		return err
	}
	return durable.WriteFile(x.begun(), p, 0o600)
}

// end removes what no manifest needs of manifests, which can be nil, and the note of begin.
func (x *exporting) end(ctx context.Context, l *layout.Layout, manifests ...[]byte) error {
	for _, m := range manifests {
		if m == nil {
			continue
		}
		if err := l.Prune(ctx, m); err != nil {
			return err
		}
	}
	return os.Remove(x.begun())
}

// tidy removes what a killed export has left.
func (x *exporting) tidy(ctx context.Context, l *layout.Layout) error {
	if err := l.Sweep(); err != nil {
		return err
	}
	p, err := os.ReadFile(x.begun())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var manifests [][]byte
	if err == nil {
		err = json.Unmarshal(p, &manifests)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", x.begun(), err)
	}
	return x.end(ctx, l, manifests...)
}

// named opens the layout for a name, without what a killed export has left, and returns the manifest that it has there;
// nil if it has none, or one that nobody can read.
func (x *exporting) named(ctx context.Context, ref remote.Ref) (l *layout.Layout, manifest []byte, err error) {
	if layout.CheckTag(ref.Recorded()) != nil {
		return nil, nil, fmt.Errorf("its name is no tag of an OCI layout, and CRI-O could read no artifact of a directory with it: %w", errdefs.ErrNotImplemented)
	}
	if l, err = layout.Create(x.artifacts(), ref.Recorded()); err != nil {
		return nil, nil, err
	}
	if err = x.tidy(ctx, l); err == nil {
		manifest, err = l.Named(ctx)
	}
	if err != nil && !errdefs.IsDataLoss(err) {
		l.Close()
		return nil, nil, err
	}
	return l, manifest, nil
}

// export writes a model.
func (x *exporting) export(ctx context.Context, cl *wire.Client, ref remote.Ref) error {
	m, config, err := x.model(ctx, cl, ref)
	if err != nil {
		return err
	}
	l, old, err := x.named(ctx, ref)
	if err != nil {
		return err
	}
	defer l.Close()
	if old != nil {
		// It removes nothing, for the index still names old; but if it fails, so will those below.
		if err := l.Prune(ctx, old); err != nil {
			return err
		}
	}
	if err := x.begin(m.body, old); err != nil {
		return err
	}
	if err := x.write(ctx, cl, l, ref, m, config); err != nil {
		return errors.Join(err, x.end(ctx, l, m.body, old))
	}
	if err := x.end(ctx, l, old); err != nil {
		return err
	}
	if left := unnamed(m.Manifest); left != nil {
		x.app.warn("%s: CRI-O mounts no files for layers without names: %v", ref, left)
	}
	d := m.Digest.String()
	return x.app.show(outTable, nil, []string{d}, [][]string{{ref.Recorded(), d}})
}

// write writes the blobs of a model, and then its manifest.
func (x *exporting) write(ctx context.Context, cl *wire.Client, l *layout.Layout, ref remote.Ref, m exported, config []byte) error {
	if err := x.blobs(ctx, l, m, config); err != nil {
		return err
	}
	// What was damaged, refused or replaced meanwhile is not given away.
	again, _, err := x.model(ctx, cl, ref)
	if err == nil && !bytes.Equal(again.body, m.body) {
		err = fmt.Errorf("the model was replaced by another one: %w", errdefs.ErrAborted)
	}
	if err != nil {
		return err
	}
	return x.locked(func() error { return l.PutManifest(ctx, mediatype.OCIManifest, m.body) })
}

// blobs writes the config and the layers of a model.
func (x *exporting) blobs(ctx context.Context, l *layout.Layout, m exported, config []byte) error {
	put := func(d convert.Descriptor, p []byte) error {
		return l.Put(ctx, d.Digest, d.Size, func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(p)), nil })
	}
	if err := put(m.Config, config); err != nil {
		return err
	}
	for _, layer := range m.Layers {
		file := store.ObjectFile(x.root, layer.Digest)
		var err error
		switch {
		case layer.Size == 0:
			err = put(layer, nil)
		case x.copies:
			err = l.Put(ctx, layer.Digest, layer.Size, func(ctx context.Context) (io.ReadCloser, error) {
				f, err := os.Open(file)
				context.AfterFunc(ctx, func() { f.Close() }) // ends the copy
				return f, err
			})
		default:
			err = l.Link(layer.Digest, layer.Size, file)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.EXDEV):
			return fmt.Errorf("%s is not on the file system of %s, so it cannot have hard links to its files: use a directory on it, or --copy: %w",
				x.dir, x.root, errdefs.ErrFailedPrecondition)
		case err != nil:
			return err
		}
	}
	return nil
}

// remove removes a model.
func (x *exporting) remove(ctx context.Context, ref remote.Ref) error {
	l, old, err := x.named(ctx, ref)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := x.begin(old); err != nil {
		return err
	}
	err = x.locked(func() error { return l.Remove(ctx, old) })
	if errdefs.IsNotFound(err) {
		err = fmt.Errorf("it is not in %s: %w", x.dir, errdefs.ErrNotFound)
	}
	if err == nil || old == nil {
		err = errors.Join(err, x.end(ctx, l))
	}
	return err
}

// locked runs f while CRI-O does not read the index.
func (x *exporting) locked(f func() error) error {
	lock, err := os.OpenFile(filepath.Join(x.artifacts(), indexLock), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.FcntlFlock(lock.Fd(), unix.F_OFD_SETLKW, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		return err
	}
	return f()
}

// An exported model is its manifest, as its registry has it.
type exported struct {
	*convert.Manifest
	body []byte
}

// model returns the manifest and the config of a model that CRI-O can mount, and that its pods may have.
func (x *exporting) model(ctx context.Context, cl *wire.Client, ref remote.Ref) (m exported, config []byte, err error) {
	d, err := cl.Image(ctx, ref.String())
	if err != nil {
		return m, nil, err
	}
	switch {
	case d.State != wire.StateComplete:
		err = fmt.Errorf("the model is not complete; \"ballast prefetch %s\" downloads the rest: %w", ref, errdefs.ErrFailedPrecondition)
	case slices.Contains(d.PrivateNames, ref.Name()) && !x.private:
		err = fmt.Errorf("only credentials can read it, and every pod of CRI-O could read what is in %s; --private gives it away: %w", x.dir, errdefs.ErrPermissionDenied)
	case d.Ahead || d.Documents == nil || d.Documents.Child != nil:
		err = fmt.Errorf("its registry has no manifest of one artifact, as CRI-O needs it: %w", errdefs.ErrNotImplemented)
	}
	if err == nil && x.rules {
		err = allowed(ctx, cl, ref, d)
	}
	if err != nil {
		return m, nil, err
	}
	if m.Manifest, err = convert.ParseManifest(d.Documents.Manifest); err != nil {
		return m, nil, err
	}
	m.body, config = d.Documents.Manifest, d.Documents.Config
	if m.Digest != d.Origin.Digest {
		return m, nil, fmt.Errorf("the manifest has the digest %s, not %s: %w", m.Digest, d.Origin.Digest, errdefs.ErrDataLoss)
	}
	if empty := ocispec.DescriptorEmptyJSON; m.Config.Digest == empty.Digest {
		config = empty.Data
	}
	return m, config, mountable(m.Manifest, d.Blobs)
}

// allowed returns an error for a model that a rule for signatures does not let containers read.
func allowed(ctx context.Context, cl *wire.Client, ref remote.Ref, d wire.Detail) error {
	res, err := cl.Signatures(ctx, ref.String())
	if err != nil {
		return err
	}
	if res.Origin != d.Origin.Digest {
		return fmt.Errorf("the name points to another model now; \"ballast prefetch %s\" downloads it: %w", ref, errdefs.ErrFailedPrecondition)
	}
	for _, r := range res.Results {
		if r.Mode == string(signature.Enforce) && r.State != wire.SignatureAccepted {
			return fmt.Errorf("rule %q for signatures does not accept it; \"ballast verify --signatures %s\" shows why: %w", r.Rule, ref, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// mountable returns an error for a manifest that CRI-O cannot mount, for which it needs all blobs.
func mountable(m *convert.Manifest, blobs []wire.Blob) error {
	if m.MediaType != "" && m.MediaType != mediatype.OCIManifest {
		return fmt.Errorf("its manifest is of the type %s, which is no OCI artifact: %w", m.MediaType, errdefs.ErrNotImplemented)
	}
	if len(unnamed(m)) == len(m.Layers) {
		return fmt.Errorf("none of its layers has a name, so CRI-O mounts no file: %w", errdefs.ErrNotImplemented)
	}
	for i, layer := range m.Layers {
		raw := func(b wire.Blob) bool { return b.Digest == layer.Digest && b.Archive == "" && b.Codec == "" }
		if layer.Size > 0 && !slices.ContainsFunc(blobs, raw) {
			return fmt.Errorf("layer %d is an archive, which CRI-O does not unpack; \"ballast convert SRC DST --as modelpack\" publishes its files: %w", i, errdefs.ErrNotImplemented)
		}
	}
	return nil
}

// unnamed returns the layers that CRI-O leaves out: those without the two annotations that it takes for the name of a
// file.
// https://github.com/cri-o/cri-o/blob/f954a17e505f8931e91004403b5f5eac71ab6085/internal/ociartifact/store.go
func unnamed(m *convert.Manifest) (layers []int) {
	for i, layer := range m.Layers {
		if layer.Annotations[mediatype.AnnotationTitle] == "" && layer.Annotations[mediatype.AnnotationFilepath] == "" {
			layers = append(layers, i)
		}
	}
	return layers
}

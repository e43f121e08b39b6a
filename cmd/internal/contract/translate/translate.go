package translate

import (
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/ballast-dev/ballast/snapshotter"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
)

// list translates a list. Only nil becomes nil.
func list[In, Out any](all []In, one func(In) Out) []Out {
	if all == nil {
		return nil
	}
	out := make([]Out, len(all))
	for i, v := range all {
		out[i] = one(v)
	}
	return out
}

// Image translates the record of an image.
func Image(im store.Image) wire.Record {
	return wire.Record{
		Manifest: im.Manifest, Config: im.Config, Table: im.Table, Origin: wire.Origin(im.Origin), Ahead: im.Ahead,
		Refs: im.Refs, Size: im.Size, PrivateNames: im.PrivateNames, Read: im.Read, Imported: im.Imported, Created: im.Created, Used: im.Used,
	}
}

// Files translates files, without their sources, which are large and not used by clients. The list is never nil.
func Files(all []filetable.File) []wire.File {
	out := make([]wire.File, len(all))
	for i, f := range all {
		out[i] = wire.File{
			Path: f.Path, Type: f.Type, Mode: f.Mode, UID: f.UID, GID: f.GID, ModTime: f.ModTime, Size: f.Size, Digest: f.Digest, Target: f.Target, Layer: f.Layer,
		}
	}
	return out
}

// Blobs translates blobs. The list is never nil.
func Blobs(all []filetable.Blob) []wire.Blob {
	out := make([]wire.Blob, len(all))
	for i, b := range all {
		out[i] = wire.Blob{
			Digest: b.Digest, Size: b.Size, Archive: string(b.Archive), Codec: string(b.Codec), DiffID: b.DiffID, Index: b.Index, Layer: b.Layer,
		}
	}
	return out
}

// Order translates the order of reads.
func Order(o filetable.Order) wire.Order {
	return wire.Order{Version: o.Version, Ranges: list(o.Ranges, func(r filetable.Range) wire.Range { return wire.Range(r) })}
}

// OrderOf is the reverse of Order. The order is not checked.
func OrderOf(o wire.Order) filetable.Order {
	return filetable.Order{Version: o.Version, Ranges: list(o.Ranges, func(r wire.Range) filetable.Range { return filetable.Range(r) })}
}

// Signatures translates the results of rules.
func Signatures(all []signature.Result) []wire.SignatureResult {
	return list(all, func(r signature.Result) wire.SignatureResult {
		return wire.SignatureResult{Rule: r.Rule, Mode: string(r.Mode), State: wire.SignatureState(r.State), Signers: r.Signers, Reasons: r.Reasons, Kept: r.Kept}
	})
}

// Bad translates damaged and missing objects.
func Bad(all []store.CheckResult) []wire.BadObject {
	return list(all, func(b store.CheckResult) wire.BadObject { return wire.BadObject(b) })
}

// Problems translates problems of snapshots.
func Problems(all []snapshotter.Problem) []wire.SnapshotProblem {
	return list(all, func(p snapshotter.Problem) wire.SnapshotProblem {
		return wire.SnapshotProblem{Snapshot: p.Snapshot, Table: p.Table, Path: p.Path, Problem: p.What}
	})
}

// Doubts translates the known problems of the store.
func Doubts(h store.Health) wire.Doubts {
	return wire.Doubts{
		SetAside: h.SetAside, Rebuilt: h.Rebuilt, Unresolved: list(h.Unresolved, func(r store.Ref) wire.Ref { return wire.Ref(r) }),
		Damaged: h.Damaged, Scrubbed: h.Scrubbed, Unrecorded: h.Unrecorded,
	}
}

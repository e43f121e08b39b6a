package wire

import (
	"time"

	"github.com/opencontainers/go-digest"
)

// PrefetchRequest requests the download of a model ahead of its use.
type PrefetchRequest struct {
	// Ref is a reference with registry, or the digest of a model that the node knows, of which the rest is downloaded.
	Ref string `json:"ref"`

	// NoPin creates no pin: garbage collection may remove the model when space runs short.
	NoPin bool `json:"noPin,omitempty"`

	// TTL is the lifetime of the pin. Zero means until it is removed.
	TTL time.Duration `json:"ttl,omitempty"`

	// List is a name for the requests of one list of models, of which the daemon downloads several
	// at the same time, and the others afterwards. Without it, the download begins at once.
	List string `json:"list,omitempty"`

	// Rate limits the downloads of the list, or of this model without a list, in bytes per second; 0: no limit. The
	// limit ends when somebody else waits for the model.
	Rate int64 `json:"rate,omitempty"`
}

// An EventStatus is the subject of an Event or a VerifyEvent.
type EventStatus string

// The statuses.
const (
	StatusResolving   EventStatus = "resolving"
	StatusWaiting     EventStatus = "waiting"
	StatusDownloading EventStatus = "downloading"
	StatusVerifying   EventStatus = "verifying"
	StatusRepairing   EventStatus = "repairing"
	StatusComplete    EventStatus = "complete"
	StatusPresent     EventStatus = "present" // the file was present before

	// The last line has one of these. StatusStarted is printed by commands that do not wait.
	StatusSuccess EventStatus = "success"
	StatusError   EventStatus = "error"
	StatusStarted EventStatus = "started"
)

// Event is a line of a prefetch. Its first keys are those of a pull line of Ollama.
// https://github.com/ollama/ollama/blob/v0.12.0/docs/api.md#pull-a-model
type Event struct {
	Status    EventStatus   `json:"status"`
	Digest    digest.Digest `json:"digest,omitempty"`
	Total     int64         `json:"total,omitempty"`     // bytes
	Completed int64         `json:"completed,omitempty"` // bytes
	File      string        `json:"file,omitempty"`
	Rate      int64         `json:"rate,omitempty"` // bytes per second
	Ref       string        `json:"ref,omitempty"`

	// LimitedBy is the registry for whose limit of requests the model waits, until Until. Empty if it does not.
	LimitedBy string    `json:"limitedBy,omitempty"`
	Until     time.Time `json:"until,omitzero"`

	// Registries and Mirrors are bytes that came from there.
	Registries int64 `json:"registries,omitempty"`
	Mirrors    int64 `json:"mirrors,omitempty"`

	Image *Record `json:"image,omitempty"` // last line, on success
	Error *Error  `json:"error,omitempty"` // last line, on failure
}

// Status describes the work of the daemon.
type Status struct {
	// Jobs are the running jobs, oldest first, followed by the last ended ones, newest first.
	Jobs []Job `json:"jobs"`

	// Paused reports whether background downloads are paused.
	Paused bool `json:"paused"`

	// WaitingReads is the number of reads of incomplete files that wait for bytes.
	WaitingReads int64 `json:"waitingReads"`

	// Mirrors are the mirrors that were used since the daemon was started.
	Mirrors []Mirror `json:"mirrors,omitempty"`
}

// A Kind is what a job does, and for which client.
type Kind string

// The kinds of jobs. All except KindRepair, KindVerify, KindScrub and KindAbandoned are also values of the metrics
// label "by".
const (
	KindPrefetch   Kind = "prefetch"
	KindImport     Kind = "import"
	KindBackground Kind = "background" // the rest of a model, without a waiting client
	KindContainerd Kind = "containerd" // a pull by containerd
	KindRepair     Kind = "repair"     // what a model has lost, for a waiting client
	KindVerify     Kind = "verify"
	KindScrub      Kind = "scrub"     // a verification in the background
	KindAbandoned  Kind = "abandoned" // a download whose clients have gone; see Job.Ends
)

// Job is work on a model.
type Job struct {
	Kind Kind `json:"kind"`

	Ref       string        `json:"ref"`             // a reference or a digest; empty: all models
	Table     digest.Digest `json:"table,omitempty"` // empty if unknown
	Started   time.Time     `json:"started"`
	Ended     time.Time     `json:"ended,omitzero"`    // zero while running
	Total     int64         `json:"total"`             // bytes
	Completed int64         `json:"completed"`         // bytes
	Rate      int64         `json:"rate,omitempty"`    // bytes per second
	Queued    bool          `json:"queued,omitempty"`  // it begins after other models of its list
	Ordered   bool          `json:"ordered,omitempty"` // it begins with what was recorded as the order of reads
	Waiting   int           `json:"waiting,omitempty"` // the number of waiting clients, without readers of files
	Reads     int64         `json:"reads,omitempty"`   // the number of reads of its files that wait

	// Limit is what limits the rate: "network", "rate" (lazy.rate, or that of a request), "hash" or "disk". Empty if
	// nothing is transferred.
	Limit string `json:"limit,omitempty"`

	// LimitedBy is the registry for whose limit of requests the job waits, until Until. Empty if it does not.
	LimitedBy string    `json:"limitedBy,omitempty"`
	Until     time.Time `json:"until,omitzero"`

	// Ends is when a job of KindAbandoned stops unless a client waits for it before.
	Ends time.Time `json:"ends,omitzero"`

	// Error is why it failed, or, while it runs, why the last attempt failed before the next one.
	Error *Error `json:"error,omitempty"`
}

// Pin is a pin with what it protects. Size and Inodes are what is attributed to it: objects that an
// older reference protects as well are not counted.
type Pin struct {
	Ref // Name is the recorded reference

	// Digest is the digest by which the model is known: of its manifest, or of its table. Moved is
	// the digest of the model that the name of the pin refers to now, if that is another one.
	Digest digest.Digest `json:"digest"`
	Moved  digest.Digest `json:"moved,omitempty"`

	// ModelSize is the sum of the known sizes of the model's files, in bytes.
	ModelSize int64 `json:"modelSize"`
}

// PinRequest requests a pin for a known model.
type PinRequest struct {
	Name string        `json:"name"`          // a reference or a digest
	TTL  time.Duration `json:"ttl,omitempty"` // zero means until it is removed
}

// VerifyRequest requests a comparison of objects with their digests.
type VerifyRequest struct {
	Name string `json:"name,omitempty"` // empty means all

	// Repair downloads damaged or missing objects again; otherwise they are only reported.
	Repair bool `json:"repair,omitempty"`
}

// VerifyEvent is a line of a verification.
type VerifyEvent struct {
	Status    EventStatus `json:"status"`
	Total     int64       `json:"total,omitempty"`     // bytes
	Completed int64       `json:"completed,omitempty"` // bytes

	Result *VerifyResult `json:"result,omitempty"` // last line, if objects were read
	Error  *Error        `json:"error,omitempty"`  // last line, on failure
}

// VerifyResult is the result of a verification.
type VerifyResult struct {
	Bytes int64       `json:"bytes"` // bytes read
	Bad   []BadObject `json:"bad"`

	// Snapshots are the problems of snapshots.
	Snapshots []SnapshotProblem `json:"snapshots,omitempty"`

	// Repaired are the references of the images that were downloaded or shown again.
	Repaired []string `json:"repaired,omitempty"`

	// Left is the number of objects in Bad and of problems in Snapshots that were not repaired.
	Left          int `json:"left"`
	LeftSnapshots int `json:"leftSnapshots,omitempty"`
}

// A SnapshotProblem is a file of a snapshot that differs from the table of its model.
type SnapshotProblem struct {
	Snapshot string        `json:"snapshot"`        // id
	Table    digest.Digest `json:"table,omitempty"` // empty if unknown
	Path     string        `json:"path,omitempty"`  // empty if it concerns the whole snapshot
	Problem  string        `json:"problem"`
}

// PauseRequest pauses or resumes background downloads. It is also the response.
type PauseRequest struct {
	Paused bool `json:"paused"`
}

// MountRequest requests a mount of a model for processes of the host.
type MountRequest struct {
	Name string `json:"name"` // a reference or a digest

	// Dir is the absolute path of the mount point. If it is empty, the daemon chooses one.
	Dir string `json:"dir,omitempty"`
}

// Mount is a model for processes of the host. The client makes the mount; the daemon protects the
// model for as long as any process uses it, and for one minute more.
type Mount struct {
	Dir      string        `json:"dir"`
	Name     string        `json:"name"` // as requested
	Table    digest.Digest `json:"table"`
	Snapshot string        `json:"snapshot"` // id
	Created  time.Time     `json:"created"`

	// Mounted reports whether its files are part of a mount.
	Mounted bool `json:"mounted"`

	// Type, Source and Options are the arguments of the mount at Dir; only in the response to a
	// MountRequest.
	Type    string   `json:"type,omitempty"`
	Source  string   `json:"source,omitempty"`
	Options []string `json:"options,omitempty"`
}

// Removed describes what was removed.
type Removed struct {
	Manifests []digest.Digest `json:"manifests"`          // of removed images
	Names     []string        `json:"names,omitempty"`    // of these images, in their order: their references, or the digest
	Untagged  []string        `json:"untagged,omitempty"` // references of images that have others

	// InUse are the elements of Manifests whose files remain, because snapshots or images of
	// containerd need them.
	InUse []digest.Digest `json:"inUse,omitempty"`

	// Stopped is the number of downloads that were stopped, because no client waited for them.
	Stopped int `json:"stopped,omitempty"`

	// Bytes is the size of the files that were removed from the disk, and Left that of those that stay, because other
	// models have them. Only of a removal with its files.
	Bytes int64 `json:"bytes,omitempty"`
	Left  int64 `json:"left,omitempty"`
}

// ImportRequest requests the import of a model from an Ollama store on this machine.
type ImportRequest struct {
	// Dir is the absolute path of the models directory as seen by the daemon. It is only read.
	Dir string `json:"dir"`

	Model string `json:"model,omitempty"` // as Ollama users write it

	// NoPin and TTL are as in PrefetchRequest.
	NoPin bool          `json:"noPin,omitempty"`
	TTL   time.Duration `json:"ttl,omitempty"`
}

// ArchiveRequest requests the import of all models of an archive of images: an OCI layout, or a tar file of one.
type ArchiveRequest struct {
	// Path is the absolute path as seen by the daemon; empty for the tar file in the body of the request.
	Path string `json:"path,omitempty"`

	Tag     string        `json:"tag,omitempty"`     // of one manifest in the index, or its digest; empty means all
	Name    string        `json:"name,omitempty"`    // the reference of the only model; empty means the names in the archive
	Private bool          `json:"private,omitempty"` // only who can read the model in its registry gets it
	TTL     time.Duration `json:"ttl,omitempty"`     // of the pins, as in PrefetchRequest
}

// Imported is a model that was imported.
type Imported struct {
	Ref    string `json:"ref"`
	Image  Record `json:"image"`
	Linked Linked `json:"linked"`
}

// ImportEvent is a line of an import. The last one has the models.
type ImportEvent struct {
	Event
	Imported []Imported `json:"imported,omitempty"`
}

// Resolved is where processes of the machine find a model.
type Resolved struct {
	Ref      string         `json:"ref"`
	Path     string         `json:"path"`     // directory with the files: the mount, or the prefix in it
	Format   string         `json:"format"`   // of the artifact
	Digest   digest.Digest  `json:"digest"`   // of the converted image
	Origin   digest.Digest  `json:"origin"`   // of the manifest in the registry
	Complete bool           `json:"complete"` // otherwise reads of missing bytes wait for them
	Files    []ResolvedFile `json:"files"`
}

// ResolvedFile is a file of a Resolved.
type ResolvedFile struct {
	Path   string        `json:"path"` // below that of the model
	Size   int64         `json:"size"`
	Digest digest.Digest `json:"digest,omitempty"` // empty if it is not yet known
}

// Linked reports the bytes of an import that were not copied.
type Linked struct {
	Cloned int64 `json:"cloned"` // they share extents with the local file
	Hard   int64 `json:"linked"` // hard links
}

// A BadObject is a damaged or missing object.
type BadObject struct {
	Digest  digest.Digest   `json:"digest"`
	Size    int64           `json:"size"` // as recorded, in bytes; 0 if missing
	Problem string          `json:"problem"`
	Tables  []digest.Digest `json:"tables,omitempty"` // models that need it, if it is missing
}

// Usage is the disk usage of the store, in bytes.
type Usage struct {
	Logical     int64 `json:"logical"`     // files of all complete models, with duplicates
	Unique      int64 `json:"unique"`      // objects on disk
	Saved       int64 `json:"saved"`       // additional size of Logical without sharing
	Reclaimable int64 `json:"reclaimable"` // objects without a reference
	Partial     int64 `json:"partial"`     // incomplete downloads, as allocated
	Objects     int64 `json:"objects"`     // count
	Free        int64 `json:"free"`        // on the file system
	Capacity    int64 `json:"capacity"`    // of the file system
}

// GCOptions are the settings of a garbage collection.
type GCOptions struct {
	Keep   int64 `json:"keep"` // the size in bytes of unreferenced objects that stay, the most recently used ones
	DryRun bool  `json:"dryRun"`
}

// GCResult reports what a garbage collection removed, or would remove.
type GCResult struct {
	Objects  int   `json:"objects"`
	Bytes    int64 `json:"bytes"`
	Partials int   `json:"partials"`
	Images   int   `json:"images"`

	// Downloads is the number of canceled downloads.
	Downloads int `json:"downloads"`

	// Models are the references, or digests, of models that lose files.
	Models []string `json:"models,omitempty"`
}

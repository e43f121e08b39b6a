package admin

import (
	"encoding/json"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/facadetls"
	"github.com/ballast-dev/ballast/cmd/internal/portowner"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/losses"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
)

// Version says what runs.
type Version struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
}

// Image is an image with its state.
type Image struct {
	store.Image

	// Sources are the repositories, "host/path", that it was got from, if it is not known by a
	// reference.
	Sources []string `json:"sources,omitempty"`

	// State is one of the states below.
	State string `json:"state"`

	// Total and Completed are the bytes that are fetched for it, and those that are there, while
	// State is StatePulling or StateLazy.
	Total     int64 `json:"total,omitempty"`
	Completed int64 `json:"completed,omitempty"`

	// Rate is how fast Completed grows, in bytes a second, if that is known.
	Rate int64 `json:"rate,omitempty"`

	// Paused says that nobody waits for the rest of it, and that such work is paused.
	Paused bool `json:"paused,omitempty"`

	// Unverified says that it can be read before a digest over what is read has matched.
	Unverified bool `json:"unverified,omitempty"`

	// Error says what is wrong if State is StateInvalid.
	Error *Error `json:"error,omitempty"`

	// Pins are the pins that keep it.
	Pins []store.Ref `json:"pins,omitempty"`

	// Snapshots is the number of snapshots that show it.
	Snapshots int `json:"snapshots"`
}

// The states of an Image.
const (
	StateComplete = "complete" // every file is there and was verified
	StatePartial  = "partial"  // something is missing, and nobody fetches it
	StateAbsent   = "absent"   // none of its bytes are there, and nobody fetches them
	StatePulling  = "pulling"  // it is being fetched
	StateLazy     = "lazy"     // it can be read already, and what is missing is fetched
	StateInvalid  = "invalid"  // it can not be shown; see Error
	StateIndex    = "index"    // it is a list of other images
)

// Detail is all that is known of one image.
type Detail struct {
	Image

	// Files are as shown if the image is complete, otherwise as far as known.
	Files []filetable.File `json:"files"`

	// Blobs are the blobs of the origin.
	Blobs []filetable.Blob `json:"blobs"`

	// ConfigJSON is the config of the converted image.
	ConfigJSON json.RawMessage `json:"configJSON,omitempty"`

	// Description is what is known of the model; nil for an index.
	Description *Description `json:"description,omitempty"`

	// Chunks says what chunks with digests its files have; nil if there are none.
	Chunks *store.ChunkUse `json:"chunks,omitempty"`

	// Losses are what the origin says and the ModelPack config, files and annotations of the
	// image do not.
	Losses []losses.Loss `json:"losses,omitempty"`

	// Signatures are what was found out about who signed it, by the rules for its names.
	Signatures []signature.Result `json:"signatures,omitempty"`

	// Documents are those of the origin, byte for byte, if the image has them.
	Documents *convert.Documents `json:"documents,omitempty"`
}

// PrefetchRequest asks for a model to be fetched ahead of its use.
type PrefetchRequest struct {
	Ref string `json:"ref"` // with registry; see ParseRef

	// NoPin leaves the model without a pin: the collector may take it when space runs short.
	NoPin bool `json:"noPin,omitempty"`

	// TTL is how long the pin holds. Zero: until it is removed.
	TTL time.Duration `json:"ttl,omitempty"`
}

// Event is a line of a prefetch. Its first keys are those of Ollama's pull.
// https://github.com/ollama/ollama/blob/v0.12.0/docs/api.md#pull-a-model
type Event struct {
	// Status is "resolving", a State of store.Progress, or StatusSuccess.
	Status    string        `json:"status"`
	Digest    digest.Digest `json:"digest,omitempty"`
	Total     int64         `json:"total,omitempty"`     // bytes
	Completed int64         `json:"completed,omitempty"` // bytes
	File      string        `json:"file,omitempty"`
	Rate      int64         `json:"rate,omitempty"` // bytes a second
	Ref       string        `json:"ref,omitempty"`

	Image *store.Image `json:"image,omitempty"` // last line, if all went well
	Error *Error       `json:"error,omitempty"` // last line, if not
}

// The statuses of an Event that are not a State of store.Progress.
const (
	StatusResolving = "resolving"
	StatusSuccess   = "success"
	StatusError     = "error"
)

// Status says what the daemon does.
type Status struct {
	// Jobs are those that run, the oldest first, and then the last that ended, the newest first.
	Jobs []Job `json:"jobs"`

	// Paused says that what nobody waits for stands still.
	Paused bool `json:"paused"`

	// WaitingReads is the number of reads of files that are not complete that wait for bytes.
	WaitingReads int64 `json:"waitingReads"`
}

// Job is work on a model.
type Job struct {
	// Kind is "prefetch", "import", "hydrate", "background" (the rest of a model, for which nobody waits),
	// "containerd" (a pull) or "verify".
	Kind string `json:"kind"`

	Ref       string        `json:"ref"`             // a reference or a digest; empty: all models
	Table     digest.Digest `json:"table,omitempty"` // empty if it is not known
	Started   time.Time     `json:"started"`
	Ended     time.Time     `json:"ended,omitzero"`    // zero: is running
	Total     int64         `json:"total"`             // bytes
	Completed int64         `json:"completed"`         // bytes
	Rate      int64         `json:"rate,omitempty"`    // bytes a second
	Waiting   int           `json:"waiting,omitempty"` // how many wait for it, but for readers

	// Error is why it failed. Of one that is running: why the last attempt did, before the next.
	Error *Error `json:"error,omitempty"`
}

// Pin is a pin with what it keeps. Its Size and Inodes are what is attributed to it: an object
// that an older reference keeps as well does not count.
type Pin struct {
	store.Ref

	// Digest is that by which the model is known: of its manifest, or of its table. Moved is that of
	// the model which the name of the pin stands for now, if that is another.
	Digest digest.Digest `json:"digest"`
	Moved  digest.Digest `json:"moved,omitempty"`

	// ModelSize is the sum of the sizes of the model's files as far as known, in bytes.
	ModelSize int64 `json:"modelSize"`
}

// PinRequest asks for a model that is known to be kept.
type PinRequest struct {
	Name string        `json:"name"`          // a reference or a digest
	TTL  time.Duration `json:"ttl,omitempty"` // zero: until it is removed
}

// VerifyRequest asks for objects to be read and compared with their digests.
type VerifyRequest struct {
	Name string `json:"name,omitempty"` // empty: all

	// Repair fetches again what is damaged or missing. Otherwise it is only reported.
	Repair bool `json:"repair,omitempty"`
}

// VerifyEvent is a line of a verify.
type VerifyEvent struct {
	Status    string `json:"status"` // "verifying", "repairing", StatusSuccess or StatusError
	Total     int64  `json:"total,omitempty"`
	Completed int64  `json:"completed,omitempty"`

	Result *VerifyResult `json:"result,omitempty"` // last line, if objects were read
	Error  *Error        `json:"error,omitempty"`  // last line, if not all went well
}

// VerifyResult is what a verify found.
type VerifyResult struct {
	Bytes int64               `json:"bytes"` // that were read
	Bad   []store.CheckResult `json:"bad"`

	// Snapshots is what is wrong with what shows models.
	Snapshots []SnapshotProblem `json:"snapshots,omitempty"`

	// Repaired are the references of the images that were fetched again, or shown again.
	Repaired []string `json:"repaired,omitempty"`

	// Left is the number of objects in Bad and of problems in Snapshots that were not repaired.
	Left          int `json:"left"`
	LeftSnapshots int `json:"leftSnapshots,omitempty"`
}

// A SnapshotProblem is a file of a snapshot that is not as the table of its model says.
type SnapshotProblem struct {
	Snapshot string        `json:"snapshot"`        // id
	Table    digest.Digest `json:"table,omitempty"` // empty if it is not known
	Path     string        `json:"path,omitempty"`  // empty if it is about all of it
	Problem  string        `json:"problem"`
}

// SnapshotHealth are facts about what shows models.
type SnapshotHealth struct {
	// Aside are files of metadata that was damaged and set aside.
	Aside []string `json:"aside,omitempty"`

	// Unknown is the number of directories that the metadata does not know.
	Unknown int `json:"unknown,omitempty"`

	// Problems were found by looking at some files of each model.
	Problems []SnapshotProblem `json:"problems,omitempty"`
}

// Health are facts about a running daemon.
type Health struct {
	Version Version   `json:"version"`
	Started time.Time `json:"started"`
	Kernel  string    `json:"kernel"`

	// Dirs are the directories of the root, with the devices they are on: "root", "objects",
	// "partial", "snapshots".
	Dirs map[string]Dir `json:"dirs"`

	Address string `json:"address"`
	Admin   string `json:"admin"`
	Facade  string `json:"facade"`

	// FacadeHealth is about who can ask the facade, and its port.
	FacadeHealth FacadeHealth `json:"facadeHealth"`

	// Show is how models are shown, "stubs" or "links", and ShowWhy why not with stubs.
	Show    string `json:"show"`
	ShowWhy string `json:"showWhy,omitempty"`

	// Lazy is about reading models before they are complete.
	Lazy LazyHealth `json:"lazy"`

	// Snapshots is about what shows models.
	Snapshots SnapshotHealth `json:"snapshots"`

	// Containerd is the socket of containerd, and ContainerdError why it does not answer. ContainerdLoaded says
	// that it has a snapshotter at Address: it has read its configuration.
	Containerd        string `json:"containerd"`
	ContainerdVersion string `json:"containerdVersion,omitempty"`
	ContainerdError   string `json:"containerdError,omitempty"`
	ContainerdLoaded  bool   `json:"containerdLoaded"`

	Usage store.Usage `json:"usage"`

	// Doubts are what the store does not believe, or does not know.
	Doubts store.Doubts `json:"doubts"`
}

// FacadeHealth are facts about the facade.
type FacadeHealth struct {
	// Error is why it does not answer, and Owner who has its port, if that is why and is known.
	Error string           `json:"error,omitempty"`
	Owner *portowner.Owner `json:"owner,omitempty"`

	// Manager says that a service manager has started the daemon. Held says that it keeps the port
	// while the daemon is down, and HeldElsewhere the address that it keeps if that is another one.
	Manager       bool   `json:"manager"`
	Held          bool   `json:"held"`
	HeldElsewhere string `json:"heldElsewhere,omitempty"`

	// Plain says that it speaks plain HTTP. Keys are about the keys otherwise; nil if there are none.
	Plain bool              `json:"plain,omitempty"`
	Keys  *facadetls.Status `json:"keys,omitempty"`
}

// Dir is a directory with the device it is on.
type Dir struct {
	Path   string `json:"path"`
	Device uint64 `json:"device"` // st_dev
}

// LazyHealth are facts about the mount of files that are not complete.
type LazyHealth struct {
	Mode string `json:"mode"` // lazy.mode of the configuration

	// Dir is where the mount is. Empty: there is none, models are shown when they are complete,
	// and Why says why.
	Dir string `json:"dir,omitempty"`
	Why string `json:"why,omitempty"`

	// Mounted says that the mount is at Dir still.
	Mounted bool `json:"mounted"`

	// Takeover says that the mount is that of an earlier daemon.
	Takeover bool `json:"takeover"`

	// Keeper is who keeps the mount while the daemon is down: "service manager", "process", or
	// "none". Kept says whether it answers.
	Keeper string `json:"keeper,omitempty"`
	Kept   bool   `json:"kept"`

	// Passthrough and Resend are what the kernel can do; Linux 6.9 has both.
	Passthrough bool `json:"passthrough"`
	Resend      bool `json:"resend"`

	// Users is why user namespaces do not get models that are not complete. Empty: they do.
	Users string `json:"users,omitempty"`

	// Paused says that what nobody waits for is paused.
	Paused bool `json:"paused"`

	// Unverified says that files can be read before a digest over them has matched.
	Unverified bool `json:"unverified"`

	Waiting int64 `json:"waiting"` // reads that wait for bytes
}

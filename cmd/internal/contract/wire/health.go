package wire

import "time"

// SnapshotHealth are facts about snapshots.
type SnapshotHealth struct {
	// Aside are files of damaged metadata that were set aside.
	Aside []string `json:"aside,omitempty"`

	// Unknown is the number of directories without metadata.
	Unknown int `json:"unknown,omitempty"`

	// Problems were found by checking some files of each model.
	Problems []SnapshotProblem `json:"problems,omitempty"`
}

// Health are facts about a running daemon.
type Health struct {
	Version Version   `json:"version"`
	Started time.Time `json:"started"`

	// Dirs are the directories of the root, with their devices: "root", "objects", "partial",
	// "snapshots".
	Dirs map[string]Dir `json:"dirs"`

	Address string `json:"address"`
	Facade  string `json:"facade"`

	// FacadeHealth are facts about the facade, its access and its port.
	FacadeHealth FacadeHealth `json:"facadeHealth"`

	// Show is how models are shown, "stubs" or "links", and ShowWhy why stubs are not used.
	Show    string `json:"show"`
	ShowWhy string `json:"showWhy,omitempty"`

	// Lazy are facts about reads of incomplete models.
	Lazy LazyHealth `json:"lazy"`

	// Snapshots are facts about snapshots.
	Snapshots SnapshotHealth `json:"snapshots"`

	// ContainerdError is why containerd does not answer. ContainerdLoaded reports whether it has a snapshotter at
	// Address, that is, has read its configuration.
	ContainerdVersion string `json:"containerdVersion,omitempty"`
	ContainerdError   string `json:"containerdError,omitempty"`
	ContainerdLoaded  bool   `json:"containerdLoaded"`

	// Mirrors are the mirrors that were used since the daemon was started.
	Mirrors []Mirror `json:"mirrors,omitempty"`

	Usage Usage `json:"usage"`

	// Doubts are the objects and facts that the store does not trust.
	Doubts Doubts `json:"doubts"`
}

// Mirror is what is known about a mirror.
type Mirror struct {
	Address string `json:"address"`
	Bytes   int64  `json:"bytes"` // received
	Wrong   int64  `json:"wrong"` // files and chunks with wrong bytes

	// Left is how often a range that it was asked for came from elsewhere, by reason: absent, failed, or slow. Last is
	// the last time.
	Left map[string]int64 `json:"left"`
	Last *Left            `json:"last,omitempty"`

	// Shunned is when it is asked again after wrong bytes, and Resting when after other failures, by registry.
	Shunned map[string]time.Time `json:"shunned,omitempty"`
	Resting map[string]time.Time `json:"resting,omitempty"`
}

// Why returns the reason why the mirror was left last, and "" if it never was.
func (m Mirror) Why() string {
	switch {
	case m.Last == nil:
		return ""
	case m.Last.Error == "":
		return m.Last.Reason
	}
	return m.Last.Reason + ": " + m.Last.Error
}

// Left is one time that a mirror was left.
type Left struct {
	Reason string    `json:"reason"`
	Error  string    `json:"error,omitempty"` // with the admin socket only: registries and mirrors write a part of it
	At     time.Time `json:"at"`
}

// MaxReached limits the registries in a request of Client.Reached.
const MaxReached = 32

// Reached is whether a registry answers.
type Reached struct {
	Registry string `json:"registry"`
	Error    *Error `json:"error,omitempty"` // why it does not; failed_precondition if a later request cannot have another answer
}

// FacadeHealth are facts about the facade.
type FacadeHealth struct {
	// Error is why it does not answer, and Owner the process that has its port, if that is the
	// reason and it is known.
	Error string `json:"error,omitempty"`
	Owner *Owner `json:"owner,omitempty"`

	// Manager reports whether a service manager started the daemon. Held reports whether the
	// service manager holds the port while the daemon is down; HeldElsewhere is the address that it
	// holds if that is another one.
	Manager       bool   `json:"manager"`
	Held          bool   `json:"held"`
	HeldElsewhere string `json:"heldElsewhere,omitempty"`

	// Plain reports whether it speaks plain HTTP. Otherwise Keys describes its keys; nil if it has
	// none.
	Plain bool        `json:"plain,omitempty"`
	Keys  *FacadeKeys `json:"keys,omitempty"`
}

// Dir is a directory with its device.
type Dir struct {
	Path   string `json:"path"`
	Device uint64 `json:"device"` // st_dev
}

// LazyHealth are facts about the mount of incomplete files.
type LazyHealth struct {
	Mode string `json:"mode"` // lazy.mode of the configuration

	// Dir is the mount point. If it is empty, there is no mount, models are shown when they are
	// complete, and Why is the reason.
	Dir string `json:"dir,omitempty"`
	Why string `json:"why,omitempty"`

	// Mounted reports whether the mount is still at Dir.
	Mounted bool `json:"mounted"`

	// Takeover reports whether the mount was taken over from an earlier daemon.
	Takeover bool `json:"takeover"`

	// Keeper is what keeps the mount while the daemon is down: "process", or
	// "none". Kept reports whether it answers.
	Keeper string `json:"keeper,omitempty"`
	Kept   bool   `json:"kept"`

	// Passthrough and Resend report features of the kernel; Linux 6.9 has both.
	Passthrough bool `json:"passthrough"`
	Resend      bool `json:"resend"`

	// Users is why user namespaces do not get incomplete models; empty if they do.
	Users string `json:"users,omitempty"`

	// Paused reports whether background downloads are paused.
	Paused bool `json:"paused"`

	Waiting int64 `json:"waiting"` // reads waiting for bytes
}

// Doubts are the known problems of the store.
type Doubts struct {
	// SetAside are the paths of damaged databases that were replaced.
	SetAside []string `json:"setAside,omitempty"`

	// Rebuilt is the time when the database was last rebuilt. Pins may have been lost.
	Rebuilt time.Time `json:"rebuilt,omitzero"`

	// Unresolved are the references whose needed objects are unknown. While there are any, garbage
	// collection stops.
	Unresolved []Ref `json:"unresolved,omitempty"`

	// Damaged are the paths of damaged files that were set aside. Unrecorded is the size in bytes of
	// files that become objects when they have been hashed.
	Damaged []string `json:"damaged,omitempty"`

	// Scrubbed is when the last verification of all objects began; zero if there was none.
	Scrubbed   time.Time `json:"scrubbed,omitzero"`
	Unrecorded int64     `json:"unrecorded,omitempty"`
}

// An Owner is the process that has bound a TCP port.
type Owner struct {
	Address string `json:"address"`           // as bound, "host:port"
	UID     int    `json:"uid"`               // the user that created the socket
	PID     int    `json:"pid,omitempty"`     // 0 if unknown
	Command string `json:"command,omitempty"` // command line, made printable
}

// FacadeKeys describe the keys of the facade.
type FacadeKeys struct {
	// AuthorityEnds is when the certificate of the CA expires. It is renewed before.
	AuthorityEnds time.Time `json:"authorityEnds"`

	// Remade is when this daemon replaced a lost CA, and Why what was wrong with the old one. Zero
	// if it did not.
	Remade time.Time `json:"remade,omitzero"`
	Why    string    `json:"why,omitempty"`
}

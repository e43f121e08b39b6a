package format

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/losses"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/opencontainers/go-digest"
)

// A Format is a way to package models.
type Format struct {
	// Name is the name in filetable.Origin.Format, empty if there is none. It is part of the
	// converted images, and never changes.
	Name mediatype.Format

	// Detect returns whether a manifest is in this format. An error is used only if no other format
	// has a larger claim.
	Detect func(m *convert.Manifest) (Claim, error)

	// Parse converts an artifact to a model. It reads the manifest, the config, small text layers
	// and headers of archives, never weights. m is the parsed manifest of a.
	Parse func(ctx context.Context, s Settings, a convert.Artifact, m *convert.Manifest) (*convert.Model, error)

	// Losses has the rules for facts of an origin that a converted image has no place for.
	Losses losses.Rules

	// Limits are the names of limits (filetable.LimitError) specific to this format.
	Limits []string

	// Variants is set for a format whose manifests list a model in several variants. Such a format
	// has no Parse.
	Variants *Variants

	// Archives is set for a format whose models have files that are not blobs of a registry.
	Archives *Archives

	// Writer writes models of other formats in this format.
	Writer *Writer

	// Place is the place of models that are not in a registry.
	Place *Place

	// Hosts returns the hosts of references of this format; nil if they are ordinary registries.
	Hosts func(s Settings) (Hosts, error)

	// Prefix is the prefix of references with another syntax; Ref parses the rest.
	Prefix string
	Ref    func(rest string) (remote.Ref, error)

	// Page returns the reference of the model that a page of a web site shows, "" for another site,
	// or an error that says what to write for a page that does not show a model. path are the
	// elements of its path.
	Page func(host string, path []string) (ref string, err error)
}

// Variants describe how one of several models is chosen. Its name follows a slash in
// filetable.Origin.Format.
type Variants struct {
	// Names are the possible variants, the preferred one first.
	Names []string

	// Choose chooses a variant from a manifest, as served; the preferred one for "".
	Choose func(manifest []byte, variant string) (*Choice, error)
}

// A Choice is a chosen variant.
type Choice struct {
	Origin filetable.Origin

	// Parse parses the chosen model; a has the blobs, and the manifest from which it was chosen.
	Parse func(ctx context.Context, a convert.Artifact) (*convert.Model, error)
}

// Archives describe how models with their own files are opened. The scheme of a name of one at a
// URL is the name of the format: "carton+https://…".
type Archives struct {
	// Layer opens the archive that is a layer of an artifact with the manifest m, whose blobs f
	// reads.
	Layer func(ctx context.Context, s Settings, m *convert.Manifest, f transfer.Fetcher) (Archive, error)

	// URL opens the archive at a URL. If hash is not empty, the archive must have it; otherwise URL
	// returns a *verify.Error.
	URL func(ctx context.Context, s Settings, address string, hash digest.Digest) (Archive, error)
}

// An Archive is an open model with its own files. Its methods are safe for concurrent use.
type Archive interface {
	// Hash returns the digest of the origin of Model: it identifies the archive wherever it is.
	Hash() digest.Digest

	Model(ctx context.Context) (*convert.Model, error)

	// LayerModel is Model for an archive that is a layer of an artifact with the manifest m.
	LayerModel(ctx context.Context, a convert.Artifact, m *convert.Manifest) (*convert.Model, error)

	// Fetcher returns the fetcher of the blobs of the model.
	Fetcher() transfer.Fetcher

	Close() error
}

// Hosts are hosts with another protocol than registries, or with other requests.
type Hosts struct {
	Names   []string
	Manner  remote.Manner
	Dialect remote.Dialect // nil if they are registries

	// Credentials returns the credentials of the node for the hosts if it has no others; nil if
	// there are none.
	Credentials func() remote.Credentials
}

// Settings are what the program provides to formats. Fields that are not needed may be zero.
type Settings struct {
	// HTTP sends a request and follows redirects, as http.Client.Do does; nil disables access to
	// URLs. It decides which addresses are allowed.
	HTTP func(*http.Request) (*http.Response, error)

	// Getenv returns an environment variable, as os.Getenv does; nil means an empty environment.
	Getenv func(key string) string

	// TempDir is the directory for copies of archives from servers without range requests; if it is
	// empty, such archives are refused.
	TempDir string

	// Log receives what was left out; nil discards.
	Log *slog.Logger
}

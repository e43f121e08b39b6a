package differ

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/snapshotters"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxSources limits the repositories tried for one layer.
const maxSources = 16

// contentBuffer is the size of one read from the content store, in bytes. Each read is a request,
// and containerd answers in pieces of this size.
// https://github.com/containerd/containerd/blob/v2.4.2/plugins/services/content/contentserver/contentserver.go
const contentBuffer = 1 << 20 // 1 MiB

// A Repository is a repository of a registry.
type Repository struct {
	Host string // "registry.example:5000"; the port is optional
	Name string // "team/model"
}

// String returns "host/name".
func (r Repository) String() string { return r.Host + "/" + r.Name }

// belongs reports whether containerd recorded, in the labels of a blob, that the blob came from the
// repository. containerd records hosts without ports.
func (r Repository) belongs(ls map[string]string) bool {
	return slices.Contains(strings.Split(ls[r.label()], ","), r.Name)
}

// label returns the name of the label with the repositories of its host.
func (r Repository) label() string {
	return labels.LabelDistributionSource + "." + (&url.URL{Host: r.Host}).Hostname()
}

// repositories returns the repositories from which containerd got a blob: the one of the image
// being pulled if it is known, otherwise the recorded ones, sorted.
//
// The annotation with the pulled image can come from the image itself if the client does not
// replace it ("ctr images pull --local"), so it is used only if containerd recorded the same
// repository.
func (d *Differ) repositories(ctx context.Context, desc ocispec.Descriptor) ([]Repository, error) {
	info, err := d.o.Content.Info(ctx, desc.Digest)
	if err != nil {
		return nil, fmt.Errorf("content store: %w", err)
	}
	if ref, err := reference.ParseNormalizedNamed(desc.Annotations[snapshotters.TargetRefLabel]); err == nil {
		pulled := Repository{Host: reference.Domain(ref), Name: reference.Path(ref)}
		if pulled.belongs(info.Labels) {
			return []Repository{pulled}, nil
		}
	}
	return parseSources(info.Labels), nil
}

// parseSources parses containerd's labels of a blob: a key ends in the host, its value is a list of
// repositories separated by commas.
func parseSources(ls map[string]string) []Repository {
	var out []Repository
	for k, v := range ls {
		host, ok := strings.CutPrefix(k, labels.LabelDistributionSource+".")
		if !ok || host == "" {
			continue
		}
		for repo := range strings.SplitSeq(v, ",") {
			if repo != "" {
				out = append(out, Repository{Host: host, Name: repo})
			}
		}
	}
	slices.SortFunc(out, func(a, b Repository) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Name, b.Name))
	})
	out = slices.Compact(out)
	return out[:min(len(out), maxSources)]
}

// A ContentFetcher is a transfer.Fetcher that reads blobs from containerd's content store, which
// has them if the image was pulled with all layers. All users of the node share the content store,
// whatever their credentials, so a fetcher sees only blobs that containerd got from its repository alone,
// and treats their bytes as private.
type ContentFetcher struct {
	Content Content

	// Namespace is the containerd namespace. A fetch can outlive the request that started it, and
	// with it the namespace in the context.
	Namespace string

	// Repository is the repository being pulled from. The zero value is for images without one, as
	// from "ctr images import"; it sees only blobs without one.
	Repository Repository

	// Ports reports whether repositories are known that differ from Repository only in the port of their host.
	// containerd does not say then which of them a blob is from, so the fetcher sees none. Nil means that there are
	// none.
	Ports func(context.Context) bool

	mu      sync.Mutex // guards the following
	misses  int        // blobs that were not found
	listing map[digest.Digest]bool
	listed  time.Time // begin of the listing
}

// A node usually pulls a model without its layers. To be told so for each of thousands of files costs more than their
// bytes, so after manyMisses the fetcher asks for what there is, which it takes to be all for listingTTL.
const (
	manyMisses = 16
	listingTTL = 10 * time.Second
)

// Content is what is needed of containerd's content store.
type Content interface {
	content.InfoReaderProvider
	Walk(ctx context.Context, fn content.WalkFunc, filters ...string) error
}

var _ transfer.Fetcher = (*ContentFetcher)(nil)

// contentSources returns containerd's content store as a source of the blobs of a table for each of the repositories.
func (d *Differ) contentSources(ns string, table digest.Digest, from []Repository) []transfer.Source {
	if len(from) == 0 {
		from = []Repository{{}}
	}
	var l []transfer.Source
	for _, r := range from {
		f := &ContentFetcher{Content: d.o.Content, Namespace: ns, Repository: r}
		name := "containerd"
		switch {
		case r == (Repository{}):
		case d.o.Known == nil:
			name = r.String()
		default:
			name, _ = d.o.Known(table, r)
			f.Ports = func(ctx context.Context) bool {
				_, ports := d.o.Known(table, r)
				return ports
			}
		}
		l = append(l, transfer.Source{Name: name, CredentialsID: "content of " + ns, Fetcher: f})
	}
	return l
}

// Fetch implements transfer.Fetcher. It returns errdefs.ErrNotFound for a blob that is incomplete,
// has another size, or came from another repository, without distinguishing these cases.
func (f *ContentFetcher) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	if off < 0 || n < 0 || off > size-n {
		return nil, 0, fmt.Errorf("blob %s: range %d+%d of %d bytes: %w", d, off, n, size, errdefs.ErrInvalidArgument)
	}
	if f.Namespace != "" {
		ctx = namespaces.WithNamespace(ctx, f.Namespace)
	}
	missing := fmt.Errorf("content store: blob %s: %w", d, errdefs.ErrNotFound)
	if f.lacks(ctx, d) {
		return nil, 0, missing
	}
	info, err := f.Content.Info(ctx, d)
	switch {
	case errdefs.IsNotFound(err):
		f.missed()
		return nil, 0, missing
	case err != nil:
		return nil, 0, fmt.Errorf("content store: blob %s: %w", d, transfer.Foreign(ctx, err))
	case info.Size != size || !f.has(info.Labels) || f.Ports != nil && f.Ports(ctx):
		return nil, 0, missing
	}
	ra, err := f.Content.ReaderAt(ctx, ocispec.Descriptor{Digest: d, Size: size})
	if err != nil {
		return nil, 0, fmt.Errorf("content store: blob %s: %w", d, transfer.Foreign(ctx, err))
	}
	r := bufio.NewReaderSize(io.NewSectionReader(ra, off, n), int(min(n, contentBuffer)))
	// Private: the credentials of the pull that brought the blob are unknown.
	return transfer.NewBody(ctx, section{r, ra}, true), off, nil
}

// missed counts a blob that was not found.
func (f *ContentFetcher) missed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.misses++
}

// lacks reports whether a blob is known to be missing.
func (f *ContentFetcher) lacks(ctx context.Context, d digest.Digest) bool {
	if f.Repository == (Repository{}) { // its blobs have no label to ask for
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.misses < manyMisses {
		return false
	}
	if f.listing == nil || time.Since(f.listed) > listingTTL {
		now, all := time.Now(), map[digest.Digest]bool{}
		err := f.Content.Walk(ctx, func(info content.Info) error {
			all[info.Digest] = true
			return nil
		}, "labels."+strconv.Quote(f.Repository.label()))
		if err != nil {
			return false // the error is that of the next request
		}
		f.listing, f.listed = all, now
	}
	return !f.listing[d]
}

// has reports whether f may read a blob with these labels: they name its repository and no other. containerd also
// records the repository of an image that only names a blob that it has.
func (f *ContentFetcher) has(ls map[string]string) bool {
	from := parseSources(ls)
	if f.Repository == (Repository{}) {
		return len(from) == 0
	}
	return len(from) == 1 && f.Repository.belongs(ls)
}

// A section is a range of a blob in the content store.
type section struct {
	io.Reader
	io.Closer
}

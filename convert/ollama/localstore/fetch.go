package localstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

var _ transfer.Fetcher = (*Store)(nil)

// Dir returns the absolute directory of the store.
func (s *Store) Dir() string { return s.dir }

// Fetch reads a range of a blob, without verification; see store.Fetcher. If the file does not have
// the size of the blob, the error is permanent: it is a *verify.Error and
// errdefs.ErrFailedPrecondition.
func (s *Store) Fetch(_ context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	f, err := s.OpenBlob(d)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() != size {
		wrong := &verify.Error{Want: d, Got: d, WantSize: size, GotSize: info.Size()}
		err = fmt.Errorf("%w: %w", wrong, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(f, off, n), f}, off, nil
}

// ReadSmall reads and verifies a blob of unknown size, such as a child of a list. It returns
// errdefs.ErrInvalidArgument if it is larger than limit bytes.
func (a *Artifact) ReadSmall(_ context.Context, d digest.Digest, limit int64) ([]byte, error) {
	f, err := a.s.OpenBlob(d)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return verify.Read(f, d, info.Size(), min(limit, convert.MaxManifestSize))
}

// Explain adds advice to an error of a model: which file is damaged or missing, and how Ollama
// downloads it again. Other errors are returned unchanged.
func (s *Store) Explain(n Name, err error) error {
	again := fmt.Sprintf("%q brings it again, unless the model was made here", "ollama pull "+n.Short())
	if wrong, ok := errors.AsType[*verify.Error](err); ok {
		if at, pathErr := s.BlobPath(wrong.Want); pathErr == nil {
			return fmt.Errorf("%s is damaged; remove it, then %s: %w", at, again, err)
		}
		return err
	}
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("not all of it is in the store, such as when a download was not finished; %s: %w", again, err)
	}
	return err
}

// Short returns the name as Ollama users write it.
func (n Name) Short() string {
	s := n.Model + ":" + n.Tag
	if n.Namespace != defaultNamespace || n.Host != defaultHost {
		s = n.Namespace + "/" + s
	}
	if n.Host != defaultHost {
		s = n.Host + "/" + s
	}
	return s
}

// Official reports whether a name is one of the public library.
func (n Name) Official() bool { return n.Host == defaultHost && n.Namespace == defaultNamespace }

// maxNamed limits the models named in a message.
const maxNamed = 20

// known lists the models for a message.
func known(models []Model) string {
	if len(models) == 0 {
		return "which has no models"
	}
	var names []string
	for _, m := range models[:min(len(models), maxNamed)] {
		names = append(names, m.Name.Short())
	}
	if more := len(models) - maxNamed; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return "which has " + strings.Join(names, ", ")
}

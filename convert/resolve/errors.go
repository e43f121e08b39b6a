package resolve

import (
	"errors"
	"fmt"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
)

// ErrInvalidModel says that an artifact is there, and is not as it must be: trying again is of no use, and
// somebody has to push another. errdefs.IsInvalidArgument holds for it.
var ErrInvalidModel = fmt.Errorf("invalid model: %w", errdefs.ErrInvalidArgument)

// An ArtifactError is an error of looking at an artifact.
type ArtifactError struct{ Err error }

func (e *ArtifactError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *ArtifactError) Unwrap() error { return e.Err }

// Is says that the artifact is why: not a limit of this node, nor a registry that is in trouble.
func (e *ArtifactError) Is(target error) bool {
	_, limit := errors.AsType[*filetable.LimitError](e.Err)
	return target == ErrInvalidModel && errdefs.IsInvalidArgument(e.Err) && !limit
}

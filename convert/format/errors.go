package format

// An ArtifactError is an error in an artifact.
type ArtifactError struct{ Err error }

func (e *ArtifactError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *ArtifactError) Unwrap() error { return e.Err }

// A NameError is an invalid name. errdefs.IsInvalidArgument holds for it.
type NameError struct{ Err error }

func (e *NameError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *NameError) Unwrap() error { return e.Err }

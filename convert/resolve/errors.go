package resolve

// An ArtifactError is an error of looking at an artifact.
type ArtifactError struct{ Err error }

func (e *ArtifactError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *ArtifactError) Unwrap() error { return e.Err }

package filetable

// A LimitError reports that something exceeds a limit. It has the category of Err.
type LimitError struct {
	Limit string // the name, such as "tar_members"; the value of a metric label
	Err   error
}

// Error returns the name of the limit and the text of Err.
func (e *LimitError) Error() string { return "limit " + e.Limit + ": " + e.Err.Error() }

// Unwrap returns Err.
func (e *LimitError) Unwrap() error { return e.Err }

// The names of the limits of tables and of their inputs.
const (
	LimitFiles   = "model_files"
	LimitMembers = "tar_members"
	LimitDirs    = "model_directories"
)

// MaxWindow is the largest window of zstd in a compressed archive, in bytes: that of "zstd --long", and of the
// highest level of the reference implementation, which decompresses no more by default.
// https://github.com/facebook/zstd/blob/v1.5.7/programs/zstd.1.md
const MaxWindow = 128 << 20

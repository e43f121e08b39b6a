package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/containerd/errdefs"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run runs a command line and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	a := &app{stdout: stdout, stderr: stderr}
	root := a.root()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err != nil && !a.started {
		err = &usageError{err} // a flag, an argument or a command that is not known
	}
	if err != nil && !errors.Is(err, errSilent) {
		fmt.Fprintf(stderr, "ballast: %v\n", err)
	}
	return exitCode(ctx, err)
}

// A usageError says that the command line is wrong.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// usage returns a usageError.
func usage(format string, a ...any) error { return &usageError{fmt.Errorf(format, a...)} }

// errSilent ends with exit code 1 and without a message: all has been said.
var errSilent = errors.New("something has to be mended")

// The exit codes; see the package documentation.
const (
	exitError        = 1
	exitUsage        = 2
	exitNotFound     = 3
	exitUnauthorised = 4
	exitVerify       = 5
	exitSpace        = 6
	exitNetwork      = 7
	exitUnsupported  = 8
	exitResumable    = 9
	exitInterrupted  = 128 + int(syscall.SIGINT)
)

// exitCode returns the exit code of an error.
func exitCode(ctx context.Context, err error) int {
	var u *usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &u):
		return exitUsage
	case ctx.Err() != nil:
		return exitInterrupted
	case errdefs.IsDataLoss(err):
		return exitVerify
	case errdefs.IsResourceExhausted(err):
		return exitSpace
	case errdefs.IsUnauthorized(err), errdefs.IsPermissionDenied(err):
		return exitUnauthorised
	case errdefs.IsNotFound(err):
		return exitNotFound
	case errdefs.IsNotImplemented(err):
		return exitUnsupported
	case errdefs.IsAborted(err):
		return exitResumable
	case errdefs.IsUnavailable(err), errdefs.IsDeadlineExceeded(err):
		return exitNetwork
	}
	return exitError
}

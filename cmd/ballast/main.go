package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/spf13/cobra"
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
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !a.started {
		err = &usageError{err} // a flag, an argument or a command that is not known
	}
	a.say(ctx, cmd, err)
	return exitCode(ctx, err)
}

// say prints the error that a command ended with, if it has not been said yet.
func (a *app) say(ctx context.Context, cmd *cobra.Command, err error) {
	var wrong *usageError
	var name *resolve.NameError
	var said *saidError
	switch {
	case err == nil, errors.Is(err, errSilent), errors.As(err, &said):
	case errors.As(err, &wrong), errors.As(err, &name):
		a.complain(err)
		fmt.Fprintf(a.stderr, "usage: %s\n", cmd.UseLine())
	case ctx.Err() != nil && errors.Is(err, context.Canceled): // who pressed Ctrl-C knows
	default:
		a.complain(err)
	}
}

// complain prints an error.
func (a *app) complain(err error) {
	lines := strings.Split(admin.Text(err), "\n")
	for i := range lines {
		lines[i] = printable(lines[i])
	}
	fmt.Fprintf(a.stderr, "ballast: %s\n", strings.Join(lines, "\n"))
}

// warn prints what went well, but is not as somebody could expect.
func (a *app) warn(format string, args ...any) { a.remark("warning", format, args) }

// note prints what is good to know.
func (a *app) note(format string, args ...any) { a.remark("note", format, args) }

func (a *app) remark(kind, format string, args []any) {
	fmt.Fprintf(a.stderr, "ballast: %s: %s\n", kind, printable(fmt.Sprintf(format, args...)))
}

// detached says that who pressed Ctrl-C has only stopped to look.
func (a *app) detached(names ...string) {
	a.note("detached from %s; ballastd continues; run the command again to follow the progress", strings.Join(names, " "))
}

// A configError says that the configuration can not be read.
type configError struct{ err error }

func (e *configError) Error() string { return e.err.Error() }
func (e *configError) Unwrap() error { return e.err }

// A usageError says that the command line is wrong.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// usage returns a usageError.
func usage(format string, a ...any) error { return &usageError{fmt.Errorf(format, a...)} }

// A saidError has been printed; it still decides the exit code.
type saidError struct{ err error }

func (e *saidError) Error() string { return e.err.Error() }
func (e *saidError) Unwrap() error { return e.err }

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
	exitInvalid      = 10
	exitState        = 11
	exitExists       = 12
	exitInterrupted  = 128 + int(syscall.SIGINT)
)

// exits are the exit codes of the categories that admin.Error.Code names; of any other it is exitError.
var exits = map[string]int{
	"data_loss":           exitVerify,
	"resource_exhausted":  exitSpace,
	"unauthenticated":     exitUnauthorised,
	"permission_denied":   exitUnauthorised,
	"not_found":           exitNotFound,
	"not_implemented":     exitUnsupported,
	"already_exists":      exitExists,
	"failed_precondition": exitState,
	"aborted":             exitResumable,
	"deadline_exceeded":   exitNetwork,
	"unavailable":         exitNetwork,
	"invalid_argument":    exitInvalid,
}

// exitCode returns the exit code of an error.
func exitCode(ctx context.Context, err error) int {
	var u *usageError
	var c *configError
	var name *resolve.NameError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &u), errors.As(err, &c), errors.As(err, &name):
		return exitUsage
	case ctx.Err() != nil:
		return exitInterrupted
	}
	if code, ok := exits[admin.Wrap(err).Code]; ok {
		return code
	}
	return exitError
}

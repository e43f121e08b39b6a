package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/spf13/cobra"
)

func main() {
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process, whatever it waits for
	args := os.Args[1:]
	switch filepath.Base(os.Args[0]) { // links to ballast
	case helperProgram:
		args = append([]string{helperCommand}, args...)
	case llmmanProgram:
		args = llmmanArgs(args)
	}
	os.Exit(run(ctx, args, os.Stdout, os.Stderr))
}

// run runs a command line and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	a := &app{stdout: stdout, stderr: stderr, args: args}
	root := a.root()
	root.SetArgs(args)
	cmd, err := execute(ctx, root, args)
	if err != nil && ctx.Err() == nil && !a.started {
		err = &usageError{err} // an unknown flag, argument or command
	}
	a.say(ctx, cmd, err)
	return exitCode(ctx, err)
}

// endWithin is how long a command may take to end after SIGINT, SIGTERM or SIGHUP. It can wait for something
// that no context ends: the writer of a FIFO, a terminal, a file system that does not answer.
const endWithin = 2 * time.Second

// execute runs a command until it ends, or until endWithin after the end of ctx, unless the command
// has something to finish or to remove first.
func execute(ctx context.Context, root *cobra.Command, args []string) (*cobra.Command, error) {
	cmd, _, err := root.Find(args)
	if err != nil || finishes(cmd) {
		return root.ExecuteContextC(ctx)
	}
	done := make(chan error, 1)
	go func() {
		_, err := root.ExecuteContextC(ctx)
		done <- err
	}()
	select {
	case err = <-done:
		return cmd, err
	case <-ctx.Done():
	}
	select {
	case err = <-done:
	case <-time.After(endWithin):
		err = context.Canceled
	}
	return cmd, err
}

// finishes reports whether a command changes the node itself or has large temporary files.
func finishes(c *cobra.Command) bool {
	for ; c.HasParent(); c = c.Parent() {
		if slices.Contains([]string{"setup", "doctor", "config", "node", "mount", "path", "unmount", "convert", "export"}, c.Name()) {
			return true
		}
	}
	return false
}

// say prints the error of a command, unless it is already printed.
func (a *app) say(ctx context.Context, cmd *cobra.Command, err error) {
	var wrong *usageError
	var name *format.NameError
	var said *saidError
	switch {
	case err == nil, errors.Is(err, errSilent), errors.As(err, &said):
	case errors.As(err, &wrong), errors.As(err, &name):
		a.complain(err)
		fmt.Fprintf(a.stderr, "usage: %s\n", cmd.UseLine())
	case ctx.Err() != nil && errors.Is(err, context.Canceled): // the user pressed Ctrl-C
	default:
		a.complain(err)
	}
}

// complain prints an error.
func (a *app) complain(err error) {
	fmt.Fprintf(a.stderr, "ballast: %s\n", printableText(strings.TrimRight(wire.Text(err), "\n")))
}

// warn prints an unexpected side effect of a success.
func (a *app) warn(format string, args ...any) { a.remark("warning", format, args) }

// note prints useful information, but not with --quiet.
func (a *app) note(format string, args ...any) {
	if !a.quiet {
		a.remark("note", format, args)
	}
}

func (a *app) remark(kind, format string, args []any) {
	fmt.Fprintf(a.stderr, "ballast: %s: %s\n", kind, printableText(fmt.Sprintf(format, args...)))
}

// detached notes that Ctrl-C has ended only the display, not the download.
func (a *app) detached(names ...string) {
	a.note("detached from %s; ballastd continues; run the command again to follow the progress", strings.Join(names, " "))
}

// A configError is a configuration that cannot be read.
type configError struct{ err error }

func (e *configError) Error() string { return e.err.Error() }
func (e *configError) Unwrap() error { return e.err }

// A usageError is an error in the command line.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// usage returns a usageError.
func usage(format string, a ...any) error { return &usageError{fmt.Errorf(format, a...)} }

// A saidError is already printed; it still determines the exit code.
type saidError struct{ err error }

func (e *saidError) Error() string { return e.err.Error() }
func (e *saidError) Unwrap() error { return e.err }

// errSilent ends with exit code 1 and without a message, because the findings are already printed.
var errSilent = errors.New("a check failed")

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

// exits are the exit codes of the categories in wire.Error.Code; other errors have exitError.
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
	var name *format.NameError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &u), errors.As(err, &c), errors.As(err, &name):
		return exitUsage
	case ctx.Err() != nil:
		return exitInterrupted
	}
	if code, ok := exits[wire.Wrap(err).Code]; ok {
		return code
	}
	return exitError
}

// Ballastd is the daemon of ballast: a snapshotter and a differ for containerd, and a registry
// facade that serves model artifacts, by their tags, as images that containerd supports.
//
//	ballastd [--config FILE]          run until SIGTERM or SIGINT
//	ballastd config dump              print the configuration in effect
//	ballastd config default           print the default configuration
//	ballastd version
//	ballastd unmount                  unmount the lazy mount that a daemon has left; for uninstalling
//	ballastd holder --fd N --socket PATH
//	ballastd holder --stay --socket PATH
//	ballastd read-ahead               of files that the daemon passes
//
// The holder is a process that keeps the lazy mount alive while the daemon is down. A unit, or a
// container beside that of the daemon, runs the last line: child processes of the daemon can end with
// it. If there is none, the daemon starts the line before.
//
// The exit code is 0 after a signal, 2 if the command line or the configuration is wrong, and 1 for
// any other error.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/daemon"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/ahead"
	"github.com/ballast-dev/ballast/snapshotter/lazy"
	"github.com/ballast-dev/ballast/snapshotter/lazy/fdstore"
	"github.com/containerd/log"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run runs a command line and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	c := root(stdout, stderr)
	c.SetArgs(args)
	c.SetOut(stdout)
	c.SetErr(stderr)
	err := c.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "ballastd: %s\n", wire.Text(err))
	if failed := (*runError)(nil); errors.As(err, &failed) {
		return 1
	}
	return 2
}

// A runError is a failure of the daemon, not of its command line or configuration.
type runError struct{ err error }

func (e *runError) Error() string { return e.err.Error() }
func (e *runError) Unwrap() error { return e.err }

func root(stdout, stderr io.Writer) *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:           "ballastd",
		Short:         "the daemon of ballast: AI models as images of containerd",
		Version:       daemon.Version(),
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(file)
			if err != nil {
				return err
			}
			// Parts of containerd in this process have their own logger.
			if err := errors.Join(log.SetLevel(cfg.Log.Level), log.SetFormat(log.OutputFormat(cfg.Log.Format))); err != nil {
				return err
			}
			if err := serve(cmd.Context(), cfg, logger(stderr, cfg.Log)); err != nil {
				return &runError{err}
			}
			return nil
		},
	}
	c.PersistentFlags().StringVar(&file, "config", "", "configuration file (default: $BALLAST_CONFIG, then "+config.DefaultPath+")")
	c.CompletionOptions.DisableDefaultCmd = true

	conf := &cobra.Command{Use: "config", Short: "print the configuration", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	conf.AddCommand(
		&cobra.Command{Use: "dump", Short: "print the configuration in effect, from all files and the environment", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
			cfg, files, err := config.LoadFiles(file)
			if err != nil {
				return err
			}
			for _, f := range files {
				fmt.Fprintf(stdout, "# read: %s\n", f)
			}
			return cfg.Write(stdout)
		}},
		&cobra.Command{Use: "default", Short: "print the default configuration", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
			return config.Default().Write(stdout)
		}},
	)
	c.AddCommand(conf, unmount(&file, stdout, stderr), holder(stderr), readAhead(), &cobra.Command{Use: "version", Short: "print the version", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
		_, err := fmt.Fprintln(stdout, strings.Join(strings.Fields("ballastd "+strings.Join(wire.ThisVersion().Fields(), " ")), " "))
		return err
	}})
	return c
}

// unmount returns the command that removes the lazy mount.
func unmount(file *string, stdout, stderr io.Writer) *cobra.Command {
	return &cobra.Command{
		Use: "unmount", Short: "unmount what a stopped daemon has left for the next one; for uninstalling", Args: cobra.NoArgs,
		Long: "Unmount the lazy mount, which a stopped daemon has left for the next one, and end the process that keeps\nit. Containers that have incomplete files open get errors. For uninstalling.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(*file)
			if err != nil {
				return err
			}
			was, err := daemon.Unmount(cfg, lazy.Options{Log: logger(stderr, cfg.Log)})
			if err != nil {
				return &runError{err}
			}
			if !was {
				_, err = fmt.Fprintln(stdout, "nothing is mounted")
			} else {
				_, err = fmt.Fprintln(stdout, "unmounted")
			}
			return err
		},
	}
}

// holder returns the command that keeps the lazy mount.
func holder(stderr io.Writer) *cobra.Command {
	var fd int
	var socket string
	var stay bool
	c := &cobra.Command{
		Use: "holder", Short: "keep the lazy mount while there is no daemon", Args: cobra.NoArgs, Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(stderr, nil))
			signal.Ignore(syscall.SIGHUP)
			if stay {
				if err := serveHolder(cmd.Context(), socket, log); err != nil {
					return &runError{err}
				}
				return nil
			}
			if err := fdstore.RunHolder(cmd.Context(), os.NewFile(uintptr(fd), "listener"), socket, log); err != nil {
				return &runError{err}
			}
			return nil
		},
	}
	c.Flags().IntVar(&fd, "fd", 3, "file descriptor of the listening socket")
	c.Flags().StringVar(&socket, "socket", "", "path of the socket")
	c.Flags().BoolVar(&stay, "stay", false, "make the socket, and stay until SIGTERM; as a unit, or in a container beside that of the daemon")
	return c
}

// readAhead returns the command that reads files ahead, which are passed from descriptor 3 on.
func readAhead() *cobra.Command {
	var cgroup string
	var n int
	c := &cobra.Command{
		Use: "read-ahead", Short: "read files of models ahead of their readers", Args: cobra.NoArgs, Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := context.WithCancel(cmd.Context())
			go func() {
				defer stop() // the daemon has ended
				_, _ = io.Copy(io.Discard, os.Stdin)
			}()
			files := make([]*os.File, n)
			for i := range files {
				files[i] = os.NewFile(uintptr(3+i), "model")
			}
			if err := ahead.Run(ctx, cgroup, files); err != nil {
				return &runError{err}
			}
			return nil
		},
	}
	c.Flags().IntVar(&n, "files", 0, "number of files, which are open from descriptor 3 on")
	c.Flags().StringVar(&cgroup, "cgroup", "", "directory of the memory cgroup to which pages are charged (default: the root, if it has no limit)")
	return c
}

// serveHolder runs a holder that the service manager or a container runs.
func serveHolder(ctx context.Context, socket string, log *slog.Logger) error {
	m := config.Manager()
	held, err := fdstore.Passed(m.ListenPID, m.ListenFDs, m.ListenNames)
	if err != nil {
		return fmt.Errorf("files of the service manager: %w", err)
	}
	return fdstore.ServeHolder(ctx, fdstore.Stay{Socket: socket, NotifySocket: m.NotifySocket, Held: held}, log)
}

// serve runs the daemon until ctx ends.
func serve(ctx context.Context, cfg *config.Config, log *slog.Logger) (err error) {
	// What containers see must be accessible to their users, whatever the umask of the daemon.
	// Private files set their own mode.
	unix.Umask(0o022)
	d, err := daemon.New(cfg, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	defer ignoreHangup(log)()
	return d.Run(ctx)
}

// ignoreHangup ignores SIGHUP, which many services take as a wish to reload, unless it would come from a
// terminal that is closed. The returned function ends that.
func ignoreHangup(log *slog.Logger) (stop func()) {
	if tty, err := os.Open("/dev/tty"); err == nil {
		_ = tty.Close() // only looked for
		return func() {}
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	go func() {
		for range hangups {
			log.Warn("SIGHUP is ignored: the configuration is read at the start only; restart ballastd, pods continue")
		}
	}()
	return func() {
		signal.Stop(hangups)
		close(hangups)
	}
}

// logger returns the configured logger. The configuration is valid.
func logger(w io.Writer, l config.Log) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.Level)); err != nil {
		panic("ballastd: internal error: log level was not checked: " + err.Error())
	}
	o := &slog.HandlerOptions{Level: level}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

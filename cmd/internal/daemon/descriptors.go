package daemon

import (
	"log/slog"

	"golang.org/x/sys/unix"
)

// fewDescriptors is the number of open files below which a pull may fail. A pull of 1,500 small files opens 281 at
// once; several can run at a time, beside the readers of lazy models and directories that stay open (package dirs).
const fewDescriptors = 1024

// warnOfDescriptors logs if the process may open so few files that pulls fail.
func warnOfDescriptors(log *slog.Logger) {
	var limit unix.Rlimit
	// Go has raised the soft limit to the hard limit.
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil && limit.Cur < fewDescriptors {
		log.Warn("few open files are allowed: pulls of models with many files can fail with \"too many open files\"; raise LimitNOFILE of the unit or the limit of the container",
			"limit", limit.Cur, "want", fewDescriptors)
	}
}

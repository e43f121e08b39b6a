package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/spf13/cobra"
)

// watchEvery is the interval of --watch.
const watchEvery = time.Second

// watchFlag adds --watch to a command, and returns how often to show the output, for repeat.
func watchFlag(c *cobra.Command) (times func() int) {
	on := c.Flags().BoolP("watch", "w", false, "show it again every second, until Ctrl-C, also after a restart of ballastd")
	return func() int {
		if *on {
			return 0
		}
		return 1
	}
}

// Control sequences of a terminal: its alternate screen without a cursor, and what was there before.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
)

// quietFor is how long ballastd may take for an answer before the screen says so.
const quietFor = 3 * time.Second

// repeat calls show every second, as often as times, or with 0 until ctx ends, which is not an error. The first
// error of show is returned if it is that of the first call; later ones are shown until a call succeeds. On a
// terminal, output without an end is on the alternate screen, cut to its size.
func (a *app) repeat(ctx context.Context, times int, show func() error) error {
	if times == 1 {
		return show()
	}
	stdout := a.stdout
	defer func() { a.stdout, a.width = stdout, 0 }()
	_, _, terminal := terminalSize(stdout)
	terminal = terminal && times == 0
	entered := false
	defer func() {
		if entered {
			_, _ = io.WriteString(stdout, leaveScreen)
		}
	}()
	draw := func(text string) error {
		if terminal {
			columns, rows, _ := terminalSize(stdout)
			if text = fitScreen(text, columns, rows); !entered {
				text, entered = enterScreen+text, true
			}
		}
		_, err := io.WriteString(stdout, text)
		return err
	}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	var lost time.Time // since when show fails
	last := ""
	for n := 1; ; n++ {
		var b bytes.Buffer
		if columns, _, ok := terminalSize(stdout); ok {
			a.width = columns - 1 // fitScreen leaves the last one
		}
		a.stdout = &b
		asked, answer := time.Now(), make(chan error, 1)
		go func() { answer <- show() }()
		var err error
		for waits := true; waits; {
			select {
			case err = <-answer: // also when ctx ends
				waits = false
			case <-tick.C:
				if since := time.Since(asked); terminal && since > quietFor {
					if err := draw(fmt.Sprintf("no answer from ballastd for %s; ballast doctor looks for the reason\n\n%s", took(since), last)); err != nil {
						return err
					}
				}
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && n == 1:
			return err
		case err != nil && lost.IsZero():
			if lost = time.Now(); !terminal {
				a.note("trying again: %s", wire.Text(err))
			}
		case err == nil && !lost.IsZero():
			if lost = (time.Time{}); !terminal {
				a.note("ballastd answers again")
			}
		}
		switch {
		case err == nil:
			last = b.String()
		case terminal:
			b.Reset()
			fmt.Fprintf(&b, "trying again for %s: %s\n\n%s", took(time.Since(lost)), printable(wire.Text(err)), last)
		default:
			b.Reset()
		}
		if derr := draw(b.String()); derr != nil || n == times {
			return cmp.Or(derr, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// fitScreen cuts a text to the size of a terminal, moves the cursor to the top first, and clears
// the rest of each line.
func fitScreen(text string, columns, rows int) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if rows > 1 && len(lines) > rows-1 {
		lines = append(lines[:rows-2], fmt.Sprintf("… and %d more lines", len(lines)-rows+2))
	}
	var b strings.Builder
	b.WriteString("\x1b[H")
	for _, l := range lines {
		if columns > 1 {
			l = head(l, columns-1)
		}
		b.WriteString(l + "\x1b[K\n")
	}
	b.WriteString("\x1b[J")
	return b.String()
}

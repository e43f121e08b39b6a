package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// plainEvery is the time between two lines about one file where lines can not be rewritten.
const plainEvery = 10 * time.Second

// A progress shows how one prefetch goes on.
type progress interface {
	event(admin.Event)
	end() // no more events of files
}

// progress returns how to show a prefetch.
func (a *app) progress(ref string, out output) progress {
	switch {
	case out == outJSON:
		return &jsonProgress{json.NewEncoder(a.stdout)}
	case a.quiet:
		return noProgress{}
	}
	if f, ok := a.stderr.(*os.File); ok {
		if ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			return newTerminalProgress(f, ref, func() (int, int) {
				if now, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
					ws = now
				}
				return int(ws.Col), int(ws.Row)
			})
		}
	}
	return &plainProgress{w: a.stderr, ref: ref, now: time.Now, last: map[digest.Digest]shown{}}
}

type noProgress struct{}

func (noProgress) event(admin.Event) {}
func (noProgress) end()              {}

// A jsonProgress writes one object a line.
type jsonProgress struct{ enc *json.Encoder }

func (p *jsonProgress) event(e admin.Event) { _ = p.enc.Encode(e) }
func (p *jsonProgress) end()                {}

// A plainProgress writes a line about a file when its status changes, and every plainEvery
// while it grows.
type plainProgress struct {
	w    io.Writer
	ref  string
	now  func() time.Time
	last map[digest.Digest]shown
}

// shown is what was last said of a file.
type shown struct {
	at     time.Time
	status string
	done   int64
}

func (p *plainProgress) event(e admin.Event) {
	if e.Digest == "" {
		fmt.Fprintf(p.w, "%s: %s\n", p.ref, e.Status)
		return
	}
	now, last := p.now(), p.last[e.Digest]
	if e.Status == last.status && (e.Completed == last.done || now.Sub(last.at) < plainEvery) || e.Status == "waiting" {
		return
	}
	p.last[e.Digest] = shown{now, e.Status, e.Completed}
	fmt.Fprintf(p.w, "%s: %s\n", p.ref, strings.Join(columns(e), "  "))
}

func (p *plainProgress) end() {}

// columns returns what is said of a file: name, status, and its amounts. What has no name but
// its status is said once.
func columns(e admin.Event) []string {
	out := []string{fileName(e)}
	if e.Status != e.File {
		out = append(out, e.Status)
	}
	if finished(e) {
		return append(out, size(e.Total))
	}
	return append(append(out, fmt.Sprintf("%d%%", percent(e))), amounts(e)...)
}

// amounts returns bytes, rate and time left.
func amounts(e admin.Event) []string {
	out := []string{size(e.Completed) + "/" + size(e.Total)}
	if e.Rate > 0 && e.Status == "downloading" {
		out = append(out, size(e.Rate)+"/s")
		if left := e.Total - e.Completed; left > 0 {
			out = append(out, timeLeft(left, e.Rate))
		}
	}
	return out
}

// timeLeft returns how long n bytes take, rounded to a second.
func timeLeft(n, rate int64) string {
	const most = 99 * time.Hour
	if n/rate > int64(most/time.Second) {
		return "> 99h"
	}
	return (time.Duration(n/rate+1) * time.Second).String()
}

func fileName(e admin.Event) string {
	if e.File == "" {
		return shortDigest(e.Digest.String())
	}
	return printable(e.File)
}

func finished(e admin.Event) bool { return e.Status == "complete" || e.Status == "present" }

func percent(e admin.Event) int64 {
	if e.Total <= 0 {
		return 0
	}
	return min(100, int64(float64(e.Completed)/float64(e.Total)*100))
}

// A terminalProgress keeps a line for each file that is on its way, below those of the files
// that are done.
type terminalProgress struct {
	w     io.Writer
	ref   string
	size  func() (columns, rows int)
	drawn int // lines that are rewritten

	order []digest.Digest
	files map[digest.Digest]admin.Event
	said  map[digest.Digest]bool // its last line is written
}

func newTerminalProgress(w io.Writer, ref string, size func() (int, int)) *terminalProgress {
	return &terminalProgress{w: w, ref: ref, size: size, files: map[digest.Digest]admin.Event{}, said: map[digest.Digest]bool{}}
}

func (p *terminalProgress) event(e admin.Event) {
	if e.Digest == "" {
		p.draw([]string{p.ref + ": " + e.Status})
		return
	}
	if _, ok := p.files[e.Digest]; !ok {
		p.order = append(p.order, e.Digest)
	}
	p.files[e.Digest] = e
	p.redraw()
}

func (p *terminalProgress) end() {
	p.redraw()
	p.drawn = 0
}

// redraw writes the lines of files that have come to their end for good, and then those of
// the others.
func (p *terminalProgress) redraw() {
	var active []string
	for _, d := range p.order {
		e := p.files[d]
		switch {
		case p.said[d]:
		case finished(e):
			p.said[d] = true
			p.draw([]string{p.line(e)})
			p.drawn = 0
		case e.Status != "waiting":
			active = append(active, p.line(e))
		}
	}
	if _, rows := p.size(); rows > 2 && len(active) > rows-2 {
		more := len(active) - (rows - 3)
		active = append(active[:rows-3], fmt.Sprintf("… and %d more", more))
	}
	p.draw(active)
}

// draw replaces the lines that were drawn last.
func (p *terminalProgress) draw(lines []string) {
	var b strings.Builder
	if p.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", p.drawn)
	}
	b.WriteString("\r\x1b[J")
	width, _ := p.size()
	for _, l := range lines {
		if r := []rune(l); width > 1 && len(r) > width-1 {
			l = string(r[:width-1])
		}
		b.WriteString(l + "\n")
	}
	p.drawn = len(lines)
	_, _ = io.WriteString(p.w, b.String())
}

// Widths in characters: of the bar, and of the name, which makes room for the rest of the line.
const (
	barWidth     = 16
	maxNameWidth = 36
	minNameWidth = 8

	// restWidth is what the rest of a line takes at most: "  100% ▕", the bar, "▏ ", and
	// "999 MB/999 MB  999 MB/s  99h59m59s".
	restWidth = 8 + barWidth + 2 + 34
)

// line returns the line of a file:
//
//	model-00001-of-00003.safetensors      42% ▕███████         ▏ 3.1 GB/7.3 GB  98 MB/s  42s
func (p *terminalProgress) line(e admin.Event) string {
	columns, _ := p.size()
	width := maxNameWidth
	if columns > 0 {
		width = max(minNameWidth, min(width, columns-1-restWidth))
	}
	name := []rune(fileName(e))
	if len(name) > width {
		name = append([]rune("…"), name[len(name)-width+1:]...)
	}
	if finished(e) {
		return fmt.Sprintf("%-*s  %-11s  %s", width, string(name), e.Status, size(e.Total))
	}
	full := int(percent(e)) * barWidth / 100
	bar := strings.Repeat("█", full) + strings.Repeat(" ", barWidth-full)
	return fmt.Sprintf("%-*s  %4s ▕%s▏ %s", width, string(name), fmt.Sprintf("%d%%", percent(e)), bar, strings.Join(amounts(e), "  "))
}

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// plainEvery is the interval between lines about one file where lines cannot be rewritten.
const plainEvery = 10 * time.Second

// A progress displays prefetches.
type progress interface {
	event(wire.Event)
	done(ref string, say func()) // no more events of a reference; say prints its result
	end()                        // no more events of files
}

// progress returns the display of one or several downloads.
func (a *app) progress(out output, refs ...string) progress {
	switch {
	case out == outJSON:
		return &jsonProgress{enc: json.NewEncoder(a.stdout)}
	case a.quiet:
		return noProgress{}
	}
	if _, _, ok := terminalSize(a.stderr); ok {
		p := newTerminalProgress(a.stderr, refs[0], func() (columns, rows int) {
			columns, rows, _ = terminalSize(a.stderr)
			return columns, rows
		})
		p.many = len(refs) > 1
		return p
	}
	return newPlainProgress(a.stderr, refs[0], time.Now)
}

// terminalSize returns the size of a terminal, and whether w is one.
func terminalSize(w io.Writer) (columns, rows int, ok bool) {
	f, ok := w.(*os.File)
	if !ok {
		return 0, 0, false
	}
	ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0, false
	}
	return int(ws.Col), int(ws.Row), true
}

type noProgress struct{}

func (noProgress) event(wire.Event)        {}
func (noProgress) done(_ string, f func()) { f() }
func (noProgress) end()                    {}

// A jsonProgress writes one object per line.
type jsonProgress struct {
	noProgress
	enc *json.Encoder
}

func (p *jsonProgress) event(e wire.Event) { _ = p.enc.Encode(e) }

// A plainProgress writes a line about a file when its status changes, and every plainEvery while it
// grows, and then one for all files. Files that were present before have one line, the last.
type plainProgress struct {
	noProgress
	w     io.Writer
	ref   string // for events without one
	now   func() time.Time
	last  map[digest.Digest]shown
	total time.Time // time of the last line for all files
	files fileEvents
}

func newPlainProgress(w io.Writer, ref string, now func() time.Time) *plainProgress {
	return &plainProgress{w: w, ref: ref, now: now, last: map[digest.Digest]shown{}, total: now(), files: fileEvents{}}
}

// shown is the last line about a file.
type shown struct {
	at     time.Time
	status wire.EventStatus
	done   int64
}

func (p *plainProgress) event(e wire.Event) {
	ref := cmp.Or(e.Ref, p.ref)
	if e.Digest == "" {
		fmt.Fprintf(p.w, "%s: %s\n", ref, doing(e))
		return
	}
	p.files[e.Digest] = e
	now, last := p.now(), p.last[e.Digest]
	switch {
	case e.Status == wire.StatusPresent, e.Status == wire.StatusWaiting:
	case e.Status != last.status, e.Completed != last.done && now.Sub(last.at) >= plainEvery:
		p.last[e.Digest] = shown{now, e.Status, e.Completed}
		fmt.Fprintf(p.w, "%s: %s\n", ref, strings.Join(columns(e), "  "))
	}
	if all, ok := p.files.total(); ok && now.Sub(p.total) >= plainEvery {
		p.total = now
		fmt.Fprintln(p.w, strings.Join(columns(all), "  "))
	}
}

func (p *plainProgress) end() {
	if e, ok := p.files.present(); ok {
		fmt.Fprintf(p.w, "%s: %s\n", p.ref, strings.Join(columns(e), "  "))
	}
}

// fileEvents are the last events of files, by blob.
type fileEvents map[digest.Digest]wire.Event

// total returns one event for all files that are downloaded; false if there is at most one, or if
// they are all done.
func (f fileEvents) total() (wire.Event, bool) {
	all, n, done := wire.Event{File: "total", Status: wire.StatusDownloading}, 0, true
	for _, e := range f {
		if e.Status == wire.StatusPresent {
			continue
		}
		n++
		all.Total += e.Total
		all.Completed += e.Completed
		if e.Status == all.Status {
			all.Rate += e.Rate
		}
		done = done && finished(e)
	}
	return all, n > 1 && !done
}

// present returns one event for all files that were present before; false if there are none.
func (f fileEvents) present() (all wire.Event, ok bool) {
	n := 0
	for _, e := range f {
		if e.Status == wire.StatusPresent {
			n++
			all = wire.Event{Status: e.Status, File: e.File, Digest: e.Digest, Total: all.Total + e.Total}
		}
	}
	if n > 1 {
		all.File = fmt.Sprintf("%d files", n)
	}
	return all, n > 0
}

// columns returns the columns for a file: name, status, and amounts. If it has no name, its status
// is printed once.
func columns(e wire.Event) []string {
	out := []string{fileName(e)}
	if string(e.Status) != e.File {
		out = append(out, string(e.Status))
	}
	if finished(e) {
		return append(out, size(e.Total))
	}
	return append(append(out, fmt.Sprintf("%d%%", percent(e))), amounts(e)...)
}

// amounts returns bytes, rate and time left.
func amounts(e wire.Event) []string {
	out := []string{size(e.Completed) + "/" + size(e.Total)}
	if e.Rate > 0 && e.Status == wire.StatusDownloading {
		out = append(out, size(e.Rate)+"/s")
		if left := e.Total - e.Completed; left > 0 {
			out = append(out, timeLeft(left, e.Rate))
		}
	}
	return out
}

// timeLeft returns the time for n bytes, rounded to a second.
func timeLeft(n, rate int64) string {
	const most = 99 * time.Hour
	if n/rate > int64(most/time.Second) {
		return "> 99h"
	}
	return (time.Duration(n/rate+1) * time.Second).String()
}

func fileName(e wire.Event) string {
	if e.File == "" {
		return shortDigest(e.Digest.String())
	}
	return printable(e.File)
}

func finished(e wire.Event) bool {
	return e.Status == wire.StatusComplete || e.Status == wire.StatusPresent
}

func percent(e wire.Event) int64 {
	if e.Total <= 0 {
		return 0
	}
	return min(100, int64(float64(e.Completed)/float64(e.Total)*100))
}

// A terminalProgress keeps a line for each file that is being downloaded, below those of complete
// files, and one for all files together.
type terminalProgress struct {
	w     io.Writer
	ref   string
	many  bool // several references, so file names have a prefix
	size  func() (columns, rows int)
	drawn []int // widths of the lines to rewrite, in columns

	files fileEvents
	order []digest.Digest // files whose last line is not written yet
	begun []wire.Event    // of references without a known file
}

func newTerminalProgress(w io.Writer, ref string, size func() (int, int)) *terminalProgress {
	return &terminalProgress{w: w, ref: ref, size: size, files: fileEvents{}}
}

func (p *terminalProgress) event(e wire.Event) {
	ref := cmp.Or(e.Ref, p.ref)
	defer p.redraw()
	at := slices.IndexFunc(p.begun, func(b wire.Event) bool { return b.Ref == ref })
	switch {
	case e.Digest == "" && at < 0:
		e.Ref = ref
		p.begun = append(p.begun, e)
		return
	case e.Digest == "":
		e.Ref = ref
		p.begun[at] = e
		return
	case at >= 0:
		p.begun = slices.Delete(p.begun, at, at+1)
	}
	if p.many {
		e.File = modelOf(ref) + "/" + fileName(e)
	}
	if _, ok := p.files[e.Digest]; !ok {
		p.order = append(p.order, e.Digest)
	}
	p.files[e.Digest] = e
}

// done clears the rewritten lines while something else is printed.
func (p *terminalProgress) done(ref string, say func()) {
	p.begun = slices.DeleteFunc(p.begun, func(b wire.Event) bool { return b.Ref == ref })
	p.draw(nil)
	say()
	p.redraw()
}

// modelOf returns the last part of the name of a repository.
func modelOf(ref string) string {
	name, _, _ := strings.Cut(ref[strings.LastIndexByte(ref, '/')+1:], "@")
	name, _, _ = strings.Cut(name, ":")
	return name
}

func (p *terminalProgress) end() {
	p.redraw()
	p.drawn = nil
}

// redraw writes the final lines of files that are done, and then those of the others, and of all
// files.
func (p *terminalProgress) redraw() {
	var active []string
	for _, e := range p.begun {
		active = append(active, e.Ref+": "+doing(e))
	}
	p.order = slices.DeleteFunc(p.order, func(d digest.Digest) bool {
		e := p.files[d]
		switch {
		case e.Status == wire.StatusPresent, e.Status == wire.StatusWaiting:
		case finished(e):
			p.draw([]string{p.line(e)})
			p.drawn = nil
			return true
		default:
			active = append(active, p.line(e))
		}
		return false
	})
	var all []string // lines that are always shown
	if e, ok := p.files.total(); ok {
		all = append(all, p.line(e))
	}
	if e, ok := p.files.present(); ok {
		all = append(all, p.line(e))
	}
	if _, rows := p.size(); rows > 2+len(all) && len(active) > rows-2-len(all) {
		most := rows - 3 - len(all)
		active = append(active[:most], fmt.Sprintf("… and %d more", len(active)-most))
	}
	p.draw(append(active, all...))
}

// draw replaces the lines drawn last. Those wider than a narrowed window take several rows.
func (p *terminalProgress) draw(lines []string) {
	var b strings.Builder
	width, _ := p.size()
	up := 0
	for _, n := range p.drawn {
		up++
		if width > 0 && n > width {
			up += (n - 1) / width
		}
	}
	if up > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", up)
	}
	b.WriteString("\r\x1b[J")
	p.drawn = p.drawn[:0]
	for _, l := range lines {
		if width > 1 {
			l = head(l, width-1)
		}
		p.drawn = append(p.drawn, cells(l))
		b.WriteString(l + "\n")
	}
	_, _ = io.WriteString(p.w, b.String())
}

// Widths in columns: of the bar, which is left out if there is little space, and of the name. Both
// leave space for the rest of the line; amounts, rate and time left are visible from 60 columns on.
const (
	barWidth      = 16
	minBarWidth   = 4
	maxNameWidth  = 36
	goodNameWidth = 14
	minNameWidth  = 8

	// restWidth is the maximal width of the rest of a line: " 100% ▕", the bar, "▏ ", and "999
	// MB/999 MB 999 MB/s 99h59m59s".
	restWidth = 8 + barWidth + 2 + 34
)

// line returns the line of a file:
//
//	model-00001-of-00003.safetensors      42% ▕███████         ▏ 3.1 GB/7.3 GB  98 MB/s  42s
func (p *terminalProgress) line(e wire.Event) string {
	width, bar := p.widths()
	name := pad(shorten(fileName(e), width), width)
	if finished(e) {
		return fmt.Sprintf("%s  %-11s  %s", name, e.Status, size(e.Total))
	}
	frame := ""
	if bar > 0 {
		frame = "▕" + pad(strings.Repeat("█", int(percent(e))*bar/100), bar) + "▏ "
	}
	return fmt.Sprintf("%s  %4s %s%s", name, fmt.Sprintf("%d%%", percent(e)), frame, strings.Join(amounts(e), "  "))
}

// widths returns the widths of names and bars. They depend only on the width of the terminal, so
// that the columns are stable.
func (p *terminalProgress) widths() (name, bar int) {
	columns, _ := p.size()
	if columns == 0 {
		return maxNameWidth, barWidth
	}
	name, bar = columns-1-restWidth, barWidth
	if less := goodNameWidth - name; less > 0 {
		name, bar = goodNameWidth, barWidth-less
	}
	if bar < minBarWidth {
		name, bar = columns-1-(restWidth-barWidth-3), 0 // without its frame
	}
	return max(minNameWidth, min(maxNameWidth, name)), bar
}

// doing returns what an event says of a whole model.
func doing(e wire.Event) string {
	if e.LimitedBy != "" {
		return limitText(e.LimitedBy, e.Until)
	}
	return string(e.Status)
}

// limitText says that requests wait for the limit of a registry.
func limitText(host string, until time.Time) string {
	return fmt.Sprintf("waits %v for the limit of %s", max(0, time.Until(until)).Round(time.Second), printable(host))
}

// waiting returns a context in which this process waits for limits, and says so.
func (a *app) waiting(ctx context.Context) context.Context {
	return remote.WithPatience(ctx, func(host string, until time.Time) {
		if host != "" && !a.quiet {
			a.note("%s", limitText(host, until))
		}
	})
}

// took formats a duration with at most three digits.
func took(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(100 * time.Millisecond)
	default:
		d = d.Round(time.Millisecond)
	}
	return d.String()
}

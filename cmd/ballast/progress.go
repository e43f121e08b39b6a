package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
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
	return newPlainProgress(a.stderr, ref, time.Now)
}

type noProgress struct{}

func (noProgress) event(admin.Event) {}
func (noProgress) end()              {}

// A jsonProgress writes one object a line.
type jsonProgress struct{ enc *json.Encoder }

func (p *jsonProgress) event(e admin.Event) { _ = p.enc.Encode(e) }
func (p *jsonProgress) end()                {}

// A plainProgress writes a line about a file when its status changes, and every plainEvery
// while it grows. Files that were there before have one line, the last.
type plainProgress struct {
	w       io.Writer
	ref     string
	now     func() time.Time
	last    map[digest.Digest]shown
	present presence
}

func newPlainProgress(w io.Writer, ref string, now func() time.Time) *plainProgress {
	return &plainProgress{w: w, ref: ref, now: now, last: map[digest.Digest]shown{}, present: presence{}}
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
	if e.Status == statusPresent {
		p.present[e.Digest] = e
		return
	}
	now, last := p.now(), p.last[e.Digest]
	if e.Status == last.status && (e.Completed == last.done || now.Sub(last.at) < plainEvery) || e.Status == "waiting" {
		return
	}
	p.last[e.Digest] = shown{now, e.Status, e.Completed}
	fmt.Fprintf(p.w, "%s: %s\n", p.ref, strings.Join(columns(e), "  "))
}

func (p *plainProgress) end() {
	if e, ok := p.present.all(); ok {
		fmt.Fprintf(p.w, "%s: %s\n", p.ref, strings.Join(columns(e), "  "))
	}
}

// statusPresent is the status of a file that was there before anything was fetched.
const statusPresent = "present"

// A presence is what was there before.
type presence map[digest.Digest]admin.Event

// all returns one event about all of it; false if there is none.
func (p presence) all() (all admin.Event, ok bool) {
	for _, e := range p {
		all = admin.Event{Status: e.Status, File: e.File, Digest: e.Digest, Total: all.Total + e.Total}
	}
	if len(p) > 1 {
		all.File = fmt.Sprintf("%d files", len(p))
	}
	return all, len(p) > 0
}

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

func finished(e admin.Event) bool { return e.Status == "complete" || e.Status == statusPresent }

func percent(e admin.Event) int64 {
	if e.Total <= 0 {
		return 0
	}
	return min(100, int64(float64(e.Completed)/float64(e.Total)*100))
}

// A terminalProgress keeps a line for each file that is on its way, below those of the files
// that are done, and one for all of them together.
type terminalProgress struct {
	w     io.Writer
	ref   string
	size  func() (columns, rows int)
	drawn []int // lengths of the lines that are rewritten, in characters

	order   []digest.Digest
	files   map[digest.Digest]admin.Event
	said    map[digest.Digest]bool // its last line is written
	present presence
}

func newTerminalProgress(w io.Writer, ref string, size func() (int, int)) *terminalProgress {
	return &terminalProgress{w: w, ref: ref, size: size, files: map[digest.Digest]admin.Event{}, said: map[digest.Digest]bool{}, present: presence{}}
}

func (p *terminalProgress) event(e admin.Event) {
	if e.Digest == "" {
		p.draw([]string{p.ref + ": " + e.Status})
		return
	}
	if e.Status == statusPresent {
		p.present[e.Digest] = e
		delete(p.files, e.Digest) // what is found on a target was waiting before
		p.redraw()
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
	p.drawn = nil
}

// redraw writes the lines of files that have come to their end for good, and then those of
// the others, and of all.
func (p *terminalProgress) redraw() {
	var active []string
	for _, d := range p.order {
		e, ok := p.files[d]
		switch {
		case !ok || p.said[d]:
		case finished(e):
			p.said[d] = true
			p.draw([]string{p.line(e)})
			p.drawn = nil
		case e.Status != "waiting":
			active = append(active, p.line(e))
		}
	}
	var all []string // lines that are always there
	if e, ok := p.total(); ok {
		all = append(all, p.line(e))
	}
	if e, ok := p.present.all(); ok {
		all = append(all, p.line(e))
	}
	if _, rows := p.size(); rows > 2+len(all) && len(active) > rows-2-len(all) {
		most := rows - 3 - len(all)
		active = append(active[:most], fmt.Sprintf("… and %d more", len(active)-most))
	}
	p.draw(append(active, all...))
}

// total returns an event about all files that are fetched; false if there is at most one, or if
// they are all done.
func (p *terminalProgress) total() (admin.Event, bool) {
	all, done := admin.Event{File: "total", Status: "downloading"}, true
	for _, e := range p.files {
		all.Total += e.Total
		all.Completed += e.Completed
		if e.Status == all.Status {
			all.Rate += e.Rate
		}
		done = done && finished(e)
	}
	return all, len(p.files) > 1 && !done
}

// draw replaces the lines that were drawn last. Those that were wider than the window is now take
// several rows.
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
		r := []rune(l)
		if width > 1 && len(r) > width-1 {
			r = r[:width-1]
		}
		p.drawn = append(p.drawn, len(r))
		b.WriteString(string(r) + "\n")
	}
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
	name := shorten(fileName(e), width)
	if finished(e) {
		return fmt.Sprintf("%-*s  %-11s  %s", width, name, e.Status, size(e.Total))
	}
	full := int(percent(e)) * barWidth / 100
	bar := strings.Repeat("█", full) + strings.Repeat(" ", barWidth-full)
	return fmt.Sprintf("%-*s  %4s ▕%s▏ %s", width, name, fmt.Sprintf("%d%%", percent(e)), bar, strings.Join(amounts(e), "  "))
}

// shard is the number in the name of one of several files that are one model.
var shard = regexp.MustCompile(`(\d+)-of-\d+`)

// shorten cuts the middle of a name that is longer than width characters, but not the number by
// which files of one model differ: model-00001…safetensors.
func shorten(name string, width int) string {
	r := []rune(name)
	if len(r) <= width {
		return name
	}
	head := (width - 1) * 2 / 3
	tail := width - 1 - head
	if m := shard.FindStringSubmatchIndex(name); m != nil {
		number := []rune(name[m[2]:m[3]])
		end := len([]rune(name[:m[3]]))
		if rest := width - 2 - len(number); end > head && rest >= 0 {
			head, tail = rest/2, rest-rest/2
			return string(r[:head]) + "…" + string(number) + "…" + string(r[len(r)-tail:])
		}
	}
	return string(r[:head]) + "…" + string(r[len(r)-tail:])
}

// took returns a time for people: three digits are enough.
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

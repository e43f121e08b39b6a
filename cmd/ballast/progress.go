package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// plainEvery is the time between two lines about one file where lines can not be rewritten.
const plainEvery = 10 * time.Second

// A progress shows how prefetches go on.
type progress interface {
	event(admin.Event)
	done(ref string, say func()) // no more events of a reference; say prints something about it
	end()                        // no more events of files
}

// A sharedProgress is one of several prefetches.
type sharedProgress struct {
	mu sync.Mutex
	progress
}

// shareProgress returns how to show prefetches together.
func (a *app) shareProgress(refs []string, out output) *sharedProgress {
	p := &sharedProgress{progress: a.progress(refs[0], out)}
	if t, ok := p.progress.(*terminalProgress); ok {
		t.many = len(refs) > 1
	}
	return p
}

func (p *sharedProgress) event(e admin.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.progress.event(e)
}

func (p *sharedProgress) done(ref string, say func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.progress.done(ref, say)
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

func (noProgress) event(admin.Event)       {}
func (noProgress) done(_ string, f func()) { f() }
func (noProgress) end()                    {}

// A jsonProgress writes one object a line.
type jsonProgress struct{ enc *json.Encoder }

func (p *jsonProgress) event(e admin.Event)     { _ = p.enc.Encode(e) }
func (p *jsonProgress) done(_ string, f func()) { f() }
func (p *jsonProgress) end()                    {}

// A plainProgress writes a line about a file when its status changes, and every plainEvery
// while it grows, and then one about all of them. Files that were there before have one line, the last.
type plainProgress struct {
	w       io.Writer
	ref     string // if events do not say
	now     func() time.Time
	last    map[digest.Digest]shown
	total   time.Time // when all were said last
	files   fileEvents
	present presence
}

func newPlainProgress(w io.Writer, ref string, now func() time.Time) *plainProgress {
	return &plainProgress{w: w, ref: ref, now: now, last: map[digest.Digest]shown{}, total: now(), files: fileEvents{}, present: presence{}}
}

// shown is what was last said of a file.
type shown struct {
	at     time.Time
	status string
	done   int64
}

func (p *plainProgress) event(e admin.Event) {
	ref := cmp.Or(e.Ref, p.ref)
	if e.Digest == "" {
		fmt.Fprintf(p.w, "%s: %s\n", ref, e.Status)
		return
	}
	if e.Status == statusPresent {
		p.present[e.Digest] = e
		delete(p.files, e.Digest)
		return
	}
	p.files[e.Digest] = e
	defer p.sayTotal()
	now, last := p.now(), p.last[e.Digest]
	if e.Status == last.status && (e.Completed == last.done || now.Sub(last.at) < plainEvery) || e.Status == "waiting" {
		return
	}
	p.last[e.Digest] = shown{now, e.Status, e.Completed}
	fmt.Fprintf(p.w, "%s: %s\n", ref, strings.Join(columns(e), "  "))
}

// sayTotal writes a line about all files, every plainEvery.
func (p *plainProgress) sayTotal() {
	if all, ok := p.files.all(); ok && p.now().Sub(p.total) >= plainEvery {
		p.total = p.now()
		fmt.Fprintln(p.w, strings.Join(columns(all), "  "))
	}
}

func (p *plainProgress) done(_ string, f func()) { f() }

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
	many  bool // several references, so names of files say of which they are
	size  func() (columns, rows int)
	drawn []int // lengths of the lines that are rewritten, in characters

	order   []digest.Digest
	files   fileEvents
	begun   []string               // references of which no file is known yet
	said    map[digest.Digest]bool // its last line is written
	present presence
}

func newTerminalProgress(w io.Writer, ref string, size func() (int, int)) *terminalProgress {
	return &terminalProgress{w: w, ref: ref, size: size, files: fileEvents{}, said: map[digest.Digest]bool{}, present: presence{}}
}

func (p *terminalProgress) event(e admin.Event) {
	ref := cmp.Or(e.Ref, p.ref)
	if e.Digest == "" {
		p.begun = append(p.begun, ref)
		p.redraw()
		return
	}
	p.begun = slices.DeleteFunc(p.begun, func(b string) bool { return b == ref })
	if p.many {
		e.File = modelOf(ref) + "/" + fileName(e)
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

// done takes the lines away that are rewritten while something else is printed.
func (p *terminalProgress) done(ref string, say func()) {
	p.begun = slices.DeleteFunc(p.begun, func(b string) bool { return b == ref })
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

// redraw writes the lines of files that have come to their end for good, and then those of
// the others, and of all.
func (p *terminalProgress) redraw() {
	var active []string
	for _, ref := range p.begun {
		active = append(active, ref+": "+admin.StatusResolving)
	}
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
	if e, ok := p.files.all(); ok {
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

// fileEvents are the last events of files that are fetched.
type fileEvents map[digest.Digest]admin.Event

// all returns one event about all of them; false if there is at most one, or if they are all done.
func (f fileEvents) all() (admin.Event, bool) {
	all, done := admin.Event{File: "total", Status: "downloading"}, true
	for _, e := range f {
		all.Total += e.Total
		all.Completed += e.Completed
		if e.Status == all.Status {
			all.Rate += e.Rate
		}
		done = done && finished(e)
	}
	return all, len(f) > 1 && !done
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

// Widths in characters: of the bar, which is left out where it would be short, and of the name. Both make room for the
// rest of the line, of which amounts, rate and time left are seen from 60 columns on.
const (
	barWidth      = 16
	minBarWidth   = 4
	maxNameWidth  = 36
	goodNameWidth = 14
	minNameWidth  = 8

	// restWidth is what the rest of a line takes at most: "  100% ▕", the bar, "▏ ", and
	// "999 MB/999 MB  999 MB/s  99h59m59s".
	restWidth = 8 + barWidth + 2 + 34
)

// line returns the line of a file:
//
//	model-00001-of-00003.safetensors      42% ▕███████         ▏ 3.1 GB/7.3 GB  98 MB/s  42s
func (p *terminalProgress) line(e admin.Event) string {
	width, cells := p.widths()
	name := shorten(fileName(e), width)
	if finished(e) {
		return fmt.Sprintf("%-*s  %-11s  %s", width, name, e.Status, size(e.Total))
	}
	full := int(percent(e)) * cells / 100
	bar := ""
	if cells > 0 {
		bar = "▕" + strings.Repeat("█", full) + strings.Repeat(" ", cells-full) + "▏ "
	}
	return fmt.Sprintf("%-*s  %4s %s%s", width, name, fmt.Sprintf("%d%%", percent(e)), bar, strings.Join(amounts(e), "  "))
}

// widths returns how wide names and bars are. They follow from the width of the terminal alone, so that nothing jumps.
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

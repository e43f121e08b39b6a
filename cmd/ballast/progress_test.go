package main

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

func events() []wire.Event {
	a, b := digest.FromString("a"), digest.FromString("b")
	return []wire.Event{
		{Status: "resolving"},
		{Status: "waiting", Digest: a, File: "a.gguf", Total: 7_300_000_000},
		{Status: "present", Digest: b, File: "dir/b.json", Total: 120, Completed: 120},
		{Status: "downloading", Digest: a, File: "a.gguf", Total: 7_300_000_000, Completed: 3_100_000_000, Rate: 98_000_000},
		{Status: "downloading", Digest: a, File: "a.gguf", Total: 7_300_000_000, Completed: 4_000_000_000, Rate: 98_000_000},
		{Status: "verifying", Digest: a, File: "a.gguf", Total: 7_300_000_000, Completed: 7_300_000_000},
		{Status: "complete", Digest: a, File: "a.gguf", Total: 7_300_000_000, Completed: 7_300_000_000},
	}
}

func TestPlainProgress(t *testing.T) {
	for _, tt := range []struct {
		name string
		step time.Duration // between two events
		want string
	}{
		{"fast", time.Second, `r: resolving
r: a.gguf  downloading  42%  3.1 GB/7.3 GB  98 MB/s  43s
r: a.gguf  verifying  100%  7.3 GB/7.3 GB
r: a.gguf  complete  7.3 GB
r: dir/b.json  present  120 B
`},
		{"slow", plainEvery, `r: resolving
r: a.gguf  downloading  42%  3.1 GB/7.3 GB  98 MB/s  43s
r: a.gguf  downloading  54%  4.0 GB/7.3 GB  98 MB/s  34s
r: a.gguf  verifying  100%  7.3 GB/7.3 GB
r: a.gguf  complete  7.3 GB
r: dir/b.json  present  120 B
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b strings.Builder
			now := time.Unix(0, 0)
			p := newPlainProgress(&b, "r", func() time.Time { return now })
			for _, e := range events() {
				p.event(e)
				now = now.Add(tt.step)
			}
			p.end()
			if diff := cmp.Diff(b.String(), tt.want); diff != "" {
				t.Errorf("lines (got, want):\n%s", diff)
			}
		})
	}
}

// TestTerminalProgress renders the output on a screen and compares what remains.
func TestTerminalProgress(t *testing.T) {
	var b strings.Builder
	p := newTerminalProgress(&b, "r", func() (int, int) { return 100, 24 })
	var mid string
	for i, e := range events() {
		p.event(e)
		if i == 3 {
			mid = screen(t, b.String())
		}
	}
	p.end()
	there := fmt.Sprintf("%-36s  present      120 B\n", "dir/b.json")
	if diff := cmp.Diff(mid, fmt.Sprintf("%-36s   42%% ▕██████          ▏ 3.1 GB/7.3 GB  98 MB/s  43s\n", "a.gguf")+there); diff != "" {
		t.Errorf("in the middle (got, want):\n%s", diff)
	}
	if diff := cmp.Diff(screen(t, b.String()), fmt.Sprintf("%-36s  complete     7.3 GB\n", "a.gguf")+there); diff != "" {
		t.Errorf("at the end (got, want):\n%s", diff)
	}
}

// Lines fit into the terminal, in both directions.
func TestTerminalSize(t *testing.T) {
	var b strings.Builder
	p := newTerminalProgress(&b, "r", func() (int, int) { return 30, 6 })
	for i := range 20 {
		p.event(wire.Event{Status: "downloading", Digest: digest.FromString(fmt.Sprint(i)), File: strings.Repeat("x", 50), Total: 10, Completed: 1})
	}
	lines := strings.Split(strings.TrimSuffix(screen(t, b.String()), "\n"), "\n")
	if len(lines) != 4 || lines[2] != "… and 18 more" || !strings.HasPrefix(lines[3], "total ") {
		t.Errorf("got %q, want 2 files, the number of the others, and the total", lines)
	}
	for _, l := range lines {
		if n := len([]rune(l)); n > 29 {
			t.Errorf("line of %d characters: %q", n, l)
		}
	}
}

// Rate and time left are visible with 80 columns.
func TestNarrowTerminal(t *testing.T) {
	var b strings.Builder
	p := newTerminalProgress(&b, "r", func() (int, int) { return 80, 24 })
	p.event(wire.Event{Status: "downloading", Digest: digest.FromString("a"), File: "model-00001-of-00003-with-a-long-name.safetensors",
		Total: 999_000_000_000, Completed: 111_000_000_000, Rate: 2_500_000})
	got := screen(t, b.String())
	if want := "model-00001-…ensors "; !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q at its beginning", got, want)
	}
	if want := "111 GB/999 GB  2.5 MB/s  98h40m1s\n"; !strings.HasSuffix(got, want) {
		t.Errorf("got %q, want %q at its end", got, want)
	}
}

// The status of a file without a name is printed once.
func TestVerifyProgress(t *testing.T) {
	var b strings.Builder
	p := newPlainProgress(&b, "all models", time.Now)
	p.event(wire.Event{Status: "verifying", Digest: "verifying", File: "verifying", Total: 200, Completed: 100})
	if got, want := b.String(), "all models: verifying  50%  100 B/200 B\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// screen renders s on a terminal that supports what terminalProgress uses: lines, cursor up, clear
// to the end.
func screen(t *testing.T, s string) string {
	t.Helper()
	lines, row := []string{""}, 0
	for len(s) > 0 {
		var n int
		switch {
		case s[0] == '\n':
			s = s[1:]
			if row++; row == len(lines) {
				lines = append(lines, "")
			}
		case s[0] == '\r':
			s = s[1:]
		case strings.HasPrefix(s, "\x1b[J"):
			s = s[len("\x1b[J"):]
			lines = append(lines[:row], "")
		case s[0] == '\x1b':
			if _, err := fmt.Sscanf(s, "\x1b[%dA", &n); err != nil {
				t.Fatalf("sequence that is not known: %.10q", s)
			}
			s = s[strings.IndexByte(s, 'A')+1:]
			row -= n
		default:
			i := strings.IndexAny(s, "\n\r\x1b")
			lines[row] += s[:i]
			s = s[i:]
		}
	}
	return strings.Join(lines, "\n")
}

// A file name cannot control the terminal.
func TestHostileNames(t *testing.T) {
	e := wire.Event{Status: "downloading", Digest: digest.FromString("a"), File: "a\x1b]0;title\x07\u202egpj.exe", Total: 1}
	if got := fileName(e); strings.ContainsAny(got, "\x1b\x07\u202e") {
		t.Errorf("name: %q", got)
	}
}

func TestTimeLeft(t *testing.T) {
	for _, tt := range []struct {
		n, rate int64
		want    string
	}{{10, 1, "11s"}, {0, 1, "1s"}, {1 << 62, 1, "> 99h"}, {7200, 1, "2h0m1s"}} {
		if got := timeLeft(tt.n, tt.rate); got != tt.want {
			t.Errorf("timeLeft(%d, %d): got %s, want %s", tt.n, tt.rate, got, tt.want)
		}
	}
}

// Shortened names of files of one model still differ.
func TestShorten(t *testing.T) {
	for _, tt := range []struct {
		name  string
		width int
		want  string
	}{
		{"model.gguf", 10, "model.gguf"},
		{"model-00001-of-00003.safetensors", 19, "model-00001-…ensors"},
		{"model-00001-of-00003.safetensors", 8, "…00001…s"},
		{"transformer/diffusion_pytorch_model-00012-of-00030.safetensors", 19, "transf…00012…ensors"},
		{"größe/ein-sehr-langer-name.safetensors", 12, "größe/e…sors"},
	} {
		got := shorten(tt.name, tt.width)
		if got != tt.want || len([]rune(got)) > tt.width {
			t.Errorf("shorten(%q, %d): got %q, want %q", tt.name, tt.width, got, tt.want)
		}
	}
}

// There is a line for all files being downloaded as long as one of them is, and one for all that
// were present before.
func TestProgressTotal(t *testing.T) {
	var b strings.Builder
	p := newTerminalProgress(&b, "r", func() (int, int) { return 100, 24 })
	send := func(name, status string, total, done, rate int64) {
		p.event(wire.Event{Status: wire.EventStatus(status), Digest: digest.FromString(name), File: name, Total: total, Completed: done, Rate: rate})
	}
	send("x", "waiting", 300, 0, 0)
	send("x", "present", 300, 300, 0)
	send("y", "present", 200, 200, 0)
	send("a", "downloading", 1000, 500, 30)
	send("b", "waiting", 1000, 0, 0)
	there := fmt.Sprintf("%-36s  present      500 B\n", "2 files")
	want := fmt.Sprintf("%-36s   50%% ▕████████        ▏ 500 B/1.0 kB  30 B/s  17s\n", "a") +
		fmt.Sprintf("%-36s   25%% ▕████            ▏ 500 B/2.0 kB  30 B/s  51s\n", "total") + there
	if diff := cmp.Diff(screen(t, b.String()), want); diff != "" {
		t.Errorf("in the middle (got, want):\n%s", diff)
	}
	send("a", "complete", 1000, 1000, 0)
	send("b", "complete", 1000, 1000, 0)
	p.end()
	want = fmt.Sprintf("%-36s  complete     1.0 kB\n%-36s  complete     1.0 kB\n", "a", "b") + there
	if diff := cmp.Diff(screen(t, b.String()), want); diff != "" {
		t.Errorf("at the end (got, want):\n%s", diff)
	}
}

// Lines that a narrower window has wrapped are overwritten.
func TestNarrowedWindowIsOverwritten(t *testing.T) {
	var b strings.Builder
	columns := 100
	p := newTerminalProgress(&b, "r", func() (int, int) { return columns, 24 })
	e := wire.Event{Status: "downloading", Digest: digest.FromString("a"), File: "a", Total: 7_300_000_000, Completed: 3_100_000_000, Rate: 98_000_000}
	p.event(e) // a line of 85 characters
	b.Reset()
	columns = 40
	p.event(e)
	if got, want := b.String(), "\x1b[3A\r\x1b[J"; !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q at its beginning", got, want)
	}
}

func TestDurationText(t *testing.T) {
	for d, want := range map[time.Duration]string{
		22682 * time.Millisecond: "23s", 1234567 * time.Microsecond: "1.2s", 12345 * time.Microsecond: "12ms", 83 * time.Second: "1m23s",
	} {
		if got := took(d); got != want {
			t.Errorf("took(%v): got %s, want %s", d, got, want)
		}
	}
}

// In a terminal of 60 columns, amounts, rate and time left of all files are visible, and the
// columns are stable while the numbers grow.
func TestSixtyColumns(t *testing.T) {
	p := newTerminalProgress(io.Discard, "r", func() (int, int) { return 60, 24 })
	for _, tt := range []struct {
		done, rate int64
		want       string
	}{
		{1_000_000, 900_000, "model-with-…ensors    0% 1.0 MB/999 GB  900 kB/s  > 99h"},
		{998_000_000_000, 110_000_000, "model-with-…ensors   99% 998 GB/999 GB  110 MB/s  10s"},
	} {
		line := p.line(wire.Event{Status: "downloading", File: "model-with-a-long-name.safetensors", Total: 999_000_000_000, Completed: tt.done, Rate: tt.rate})
		if line != tt.want || len([]rune(line)) > 59 {
			t.Errorf("got %q, want %q", line, tt.want)
		}
	}
}

// TestProgressOfSeveralModels shows two models at the same time: a failure is printed above, and file names have
// the name of their model.
func TestProgressOfSeveralModels(t *testing.T) {
	var b strings.Builder
	p := newTerminalProgress(&b, "r", func() (int, int) { return 100, 24 })
	p.many = true
	file := func(ref, digestOf string, done int64) {
		p.event(wire.Event{Ref: ref, Status: "downloading", Digest: digest.FromString(digestOf), File: "model.gguf", Total: 1000, Completed: done, Rate: 10})
	}
	for _, ref := range []string{"a.b/one:1", "a.b/two@sha256:00", "a.b/none:1"} {
		p.event(wire.Event{Ref: ref, Status: "resolving"})
	}
	file("a.b/one:1", "x", 500)
	file("a.b/two@sha256:00", "y", 0)
	p.done("a.b/none:1", func() { b.WriteString("a.b/none:1: not found\n") })
	row := "%-36s  %4s ▕%-16s▏ %s\n"
	want := "a.b/none:1: not found\n" +
		fmt.Sprintf(row, "one/model.gguf", "50%", "████████", "500 B/1.0 kB  10 B/s  51s") +
		fmt.Sprintf(row, "two/model.gguf", "0%", "", "0 B/1.0 kB  10 B/s  1m41s") +
		fmt.Sprintf(row, "total", "25%", "████", "500 B/2.0 kB  20 B/s  1m16s")
	if diff := cmp.Diff(screen(t, b.String()), want); diff != "" {
		t.Errorf("got, want:\n%s", diff)
	}
}

// TestPlainTotal prints the progress of all files periodically.
func TestPlainTotal(t *testing.T) {
	var b strings.Builder
	now := time.Unix(0, 0)
	p := newPlainProgress(&b, "r", func() time.Time { return now })
	for i, name := range []string{"a", "b", "a"} {
		p.event(wire.Event{Status: "downloading", Digest: digest.FromString(name), File: name, Total: 1000, Completed: int64(i) * 100, Rate: 10})
		now = now.Add(plainEvery / 2)
	}
	if !strings.HasSuffix(b.String(), "\ntotal  downloading  15%  300 B/2.0 kB  20 B/s  1m26s\n") || strings.Count(b.String(), "total") != 1 {
		t.Errorf("got:\n%s", b.String())
	}
}

// Columns stay aligned whatever characters the names have: wide characters take two columns,
// combining ones none.
func TestWideNames(t *testing.T) {
	names := []string{"model.gguf", "模型权重文件名很长-00001-of-00003.safetensors", "모델.gguf", "e\u0301te\u0301.bin", "🦙🦙🦙🦙🦙🦙🦙🦙🦙🦙🦙.gguf"}
	p := newTerminalProgress(io.Discard, "r", func() (int, int) { return 60, 24 })
	width, _ := p.widths()
	for _, name := range names {
		l := p.line(wire.Event{Status: wire.StatusDownloading, File: name, Total: 100, Completed: 42})
		before, _, ok := strings.Cut(l, "   42%")
		if !ok || cells(before) != width || cells(l) > 59 {
			t.Errorf("%q: %d columns before the share, %d in all: %q", name, cells(before), cells(l), l)
		}
	}
	for n := 1; n < 30; n++ {
		for _, name := range names {
			if s := shorten(name, n); cells(s) > n && n >= minNameWidth {
				t.Errorf("%q in %d columns: %q", name, n, s)
			}
		}
	}
}

// TestLimitProgress shows, on a terminal and in lines, that a model waits for the limit of its registry.
func TestLimitProgress(t *testing.T) {
	waits := wire.Event{Status: wire.StatusWaiting, Ref: "hf.co/a/b:main", LimitedBy: "hf.co", Until: time.Now().Add(40*time.Second + 300*time.Millisecond)}
	goesOn := wire.Event{Status: wire.StatusResolving, Ref: waits.Ref}
	var lines, drawn strings.Builder
	plain := newPlainProgress(&lines, waits.Ref, time.Now)
	terminal := newTerminalProgress(&drawn, waits.Ref, func() (int, int) { return 100, 24 })
	for _, e := range []wire.Event{goesOn, waits, goesOn} {
		plain.event(e)
		terminal.event(e)
		if e == waits {
			if got, want := screen(t, drawn.String()), "hf.co/a/b:main: waits 40s for the limit of hf.co\n"; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
	}
	if got, want := lines.String(), "hf.co/a/b:main: resolving\nhf.co/a/b:main: waits 40s for the limit of hf.co\nhf.co/a/b:main: resolving\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/pprof/profile"
)

func ofSeconds(s ...float64) (all series) {
	for _, v := range s {
		all.add(time.Duration(v * 1e9))
	}
	return all
}

func TestTable(t *testing.T) {
	b := &bench{}
	b.times("pairs", ofSeconds(1, 6, 3), "control", ofSeconds(2, 3, 3), atMost(0.9, ""))
	b.rates("rates", 8e9, ofSeconds(4, 2), "link", ofSeconds(2), atLeast(0.7, ""))
	b.figure("a figure", 31.4, "%.0f MiB", "beside", atMost(32, " MiB"))
	b.times("no target", ofSeconds(1), "control", ofSeconds(4), target{})
	var got [][]string
	for _, r := range b.rows {
		got = append(got, []string{r.what, r.value, r.control, r.ratio, r.result()})
	}
	want := [][]string{
		{"pairs", "3.00 s (1.00–6.00)", "control 3.00 s (2.00–3.00)", "1.00 (0.50–2.00)", "≤ 0.9: **missed**"},
		{"rates", "2.67 GB/s (2.00–4.00)", "link 4.00 GB/s", "0.75 (0.50–1.00)", "≥ 0.7: met"},
		{"a figure", "31 MiB", "beside", "", "≤ 32 MiB: met"},
		{"no target", "1.00 s", "control 4.00 s", "0.25", ""},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("rows (-want +got):\n%s", d)
	}
}

func TestPrintTable(t *testing.T) {
	var b strings.Builder
	printTable(&b, [][]string{{"what", "ballast"}, {"4 KiB, µs", "1"}})
	want := "" +
		"| what      | ballast |\n" +
		"| --------- | ------- |\n" +
		"| 4 KiB, µs | 1       |\n"
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Errorf("table (-want +got):\n%s", d)
	}
}

func TestKindOf(t *testing.T) {
	for _, tt := range []struct {
		stack []string // innermost first
		want  string
	}{
		{[]string{"internal/runtime/syscall/linux.Syscall6", "syscall.pwrite", "os.(*File).WriteAt", "github.com/ballast-dev/ballast/store/internal/staging.(*Partial).write"}, "write to files"},
		{[]string{"crypto/internal/fips140/sha256.blockSHANI", "crypto/sha256.Sum256"}, "sha256"},
		{[]string{"syscall.Pread", "os.(*File).ReadAt", "github.com/ballast-dev/ballast/snapshotter/lazy.(*connection).loop"}, "read of files for FUSE"},
		{[]string{"syscall.Syscall", "golang.org/x/sys/unix.Writev", "github.com/ballast-dev/ballast/snapshotter/lazy.write"}, "FUSE requests and answers"},
		{[]string{"syscall.read", "internal/poll.(*FD).Read", "net.(*netFD).Read", "net/http.(*persistConn).Read"}, "sockets, HTTP"},
		{[]string{"runtime.memclrNoHeapPointers", "runtime.mallocgc", "net/http.newBuffer"}, "memory, garbage collection"},
		{[]string{"runtime.futex", "runtime.futexsleep", "runtime.findRunnable"}, "scheduler, locks, timers"},
		{[]string{"encoding/json.Unmarshal"}, otherKind},
	} {
		s := &profile.Sample{}
		for _, name := range tt.stack {
			s.Location = append(s.Location, &profile.Location{Line: []profile.Line{{Function: &profile.Function{Name: name}}}})
		}
		if got := kindOf(s); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.stack, got, tt.want)
		}
	}
}

func TestParseSize(t *testing.T) {
	for s, want := range map[string]int64{"256MiB": 256 << 20, "2GiB": 2 << 30} {
		if got, err := parseSize(s); got != want || err != nil {
			t.Errorf("%s: %d, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "5", "1KiB", "1TiB", "-1GiB", "255MiB"} {
		if got, err := parseSize(s); err == nil {
			t.Errorf("%q: %d, no error", s, got)
		}
	}
}

package main

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// interruptedVar is the environment variable with the page of interruptedRun.
const interruptedVar = "BENCH_INTERRUPTED"

// interruptedRun makes a measurement that ends, and another one that does not.
func interruptedRun(page string) {
	b := &bench{report: report{out: os.Stdout, page: page}}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go b.interruptible(signals)
	b.makeAll([]measurement{
		{"whole", "", func(b *bench) {
			b.figure("a row", 1, "%.0f", "", target{})
			b.addTable(table{"**a table**", [][]string{{"heading"}, {"cell"}}})
			b.figure("the last row", 2, "%.0f", "", target{})
		}},
		{"half", "", func(b *bench) {
			b.figure("half of it", 3, "%.0f", "", target{})
			io.WriteString(os.Stdout, "measuring\n")
			time.Sleep(time.Hour)
		}},
		{"never", "", func(*bench) {}},
	})
}

func TestInterrupted(t *testing.T) {
	if page := os.Getenv(interruptedVar); page != "" {
		interruptedRun(page)
		return
	}
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(s.String(), func(t *testing.T) { testInterrupted(t, s) })
	}
}

func testInterrupted(t *testing.T, s syscall.Signal) {
	dir := t.TempDir()
	page, other := filepath.Join(dir, "page.md"), filepath.Join(dir, "other.md")
	const text, figures = "# Page\n\ntext\n", "\n## Figures\n\n"
	if err := errors.Join(os.WriteFile(page, []byte(text+figures+"old figures\n"), 0o644), os.Link(page, other)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestInterrupted$")
	cmd.Env = append(os.Environ(), interruptedVar+"="+page)
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()

	r, before := bufio.NewReader(stdout), ""
	for !strings.HasSuffix(before, "measuring\n") {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("%v\n%s", err, before)
		}
		before += line
	}
	for _, want := range []string{"| a row ", "**a table**", "| cell ", "| the last row "} {
		if !strings.Contains(before, want) {
			t.Errorf("no %q before the interrupt:\n%s", want, before)
		}
	}
	if err := cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	const left = "**INTERRUPTED**: not measured, or in part: half, never"
	for _, want := range []string{"| half of it ", left} {
		if !strings.Contains(string(rest), want) {
			t.Errorf("no %q after the interrupt:\n%s", want, rest)
		}
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 128+int(s) {
		t.Errorf("the program has ended with %v", err)
	}

	p, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	got, ok := strings.CutPrefix(string(p), text+figures+left)
	if !ok || strings.Contains(got, "old figures") || strings.Contains(got, "half of it") || !strings.HasSuffix(got, "| cell    |\n") {
		t.Errorf("the page is:\n%s", p)
	}
	for _, want := range []string{"| a row ", "| the last row ", "**a table**"} {
		if !strings.Contains(got, want) {
			t.Errorf("the page has no %q:\n%s", want, p)
		}
	}
	if p, err := os.ReadFile(other); err != nil || !strings.Contains(string(p), "old figures") {
		t.Errorf("the old page was written into, not replaced: %v\n%s", err, p)
	}
	if files, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(files) != 3 {
		t.Errorf("files beside the page: %q, %v", files, err)
	}
	if svg, err := os.ReadFile(filepath.Join(dir, "page.svg")); err != nil || !strings.HasSuffix(string(svg), "</svg>\n") {
		t.Errorf("the plot: %v\n%s", err, svg)
	}
}

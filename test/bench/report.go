package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/ballast-dev/ballast/store/durable"
)

// A report is what a run has found. Tables are printed as soon as they are made, so that a run that is interrupted
// keeps them.
type report struct {
	out  io.Writer
	page string  // file to write at the end, or when the run is interrupted; empty: none
	load float64 // of the machine, at the start

	mu     sync.Mutex // guards the following; is not unlocked when the run is interrupted
	names  []string   // of the measurements of the run
	left   []string   // those that have not ended
	rows   []row
	ended  int // rows of measurements that have ended
	tables []table
	shown  struct{ rows, tables int }
	over   bool
}

// add adds rows, which are printed when the measurement ends.
func (b *bench) add(rows ...row) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rows = append(b.rows, rows...)
}

// addTable adds a table, and prints it after the rows so far.
func (b *bench) addTable(t table) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tables = append(b.tables, t)
	b.show()
}

// begins prints what the tables are about.
func (b *bench) begins(all []measurement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range all {
		b.names, b.left = append(b.names, m.name), append(b.left, m.name)
	}
	fmt.Fprintf(b.out, "%s before\n", b.heading())
}

// ends is called after each measurement.
func (b *bench) ends(m measurement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = slices.DeleteFunc(b.left, func(name string) bool { return name == m.name })
	b.ended = len(b.rows)
	b.show()
}

// finish prints what is left, also after a failure.
func (b *bench) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.show()
	fmt.Fprintf(b.out, "\nload of the machine %.2f after\n", load())
	b.over = true
}

// interruptible ends the program at the first signal, with what was measured until then.
func (b *bench) interruptible(signals <-chan os.Signal) {
	s := <-signals
	b.mu.Lock()
	if !b.over && len(b.names) > 0 {
		b.show()
		fmt.Fprintf(b.out, "\nload of the machine %.2f after; %s\n", load(), b.interrupted())
		if b.page != "" && b.ended+len(b.tables) > 0 {
			if err := b.writePage(); err != nil {
				fmt.Fprintln(os.Stderr, "bench:", err)
			}
		}
	}
	os.Exit(128 + int(s.(syscall.Signal)))
}

func (b *bench) interrupted() string {
	return "**INTERRUPTED**: not measured, or in part: " + strings.Join(b.left, ", ")
}

// show prints what was not printed. The caller holds mu.
func (b *bench) show() {
	if rows := b.rows[b.shown.rows:]; len(rows) > 0 {
		fmt.Fprintln(b.out)
		printTable(b.out, cells(rows))
	}
	for _, t := range b.tables[b.shown.tables:] {
		t.print(b.out)
	}
	b.shown.rows, b.shown.tables = len(b.rows), len(b.tables)
}

// heading tells what was measured, on what, with the load before.
func (b *bench) heading() string {
	var loaded string
	if b.load > quietLoad {
		loaded = "**LOADED**: other work ran on the machine, so only ratios and CPU-seconds mean something. "
	}
	return fmt.Sprintf("%s%s; %s; medians (smallest–largest); load of the machine %.2f", loaded, machine(), b.scopes(), b.load)
}

// cells returns rows as those of a table.
func cells(rows []row) [][]string {
	all := [][]string{{"what", "ballast", "beside it", "ratio", "target"}}
	for _, r := range rows {
		all = append(all, []string{r.what, r.value, r.control, r.ratio, r.result()})
	}
	return all
}

func (t table) print(w io.Writer) {
	fmt.Fprintf(w, "\n%s\n\n", t.title)
	printTable(w, t.rows)
}

// writePage writes the tables, and the rows of measurements that have ended, into the page below its last heading.
func (b *bench) writePage() error {
	const heading = "\n## Figures\n\n"
	p, err := os.ReadFile(b.page)
	if err != nil {
		return err
	}
	before, _, ok := strings.Cut(string(p), heading)
	if !ok {
		return fmt.Errorf("%s has no heading Figures", b.page)
	}
	var page strings.Builder
	page.WriteString(before + heading)
	if len(b.left) > 0 {
		page.WriteString(b.interrupted() + ". ")
	}
	fmt.Fprintf(&page, "%s before and %.2f after\n\n", b.heading(), load())
	if b.ended > 0 {
		printTable(&page, cells(b.rows[:b.ended]))
	}
	for _, t := range b.tables {
		t.print(&page)
	}
	if err := durable.WriteFile(b.page, []byte(page.String()), 0o644); err != nil {
		return err
	}
	return writePlot(b.page)
}

// writePlot writes the plot of a page beside it.
func writePlot(name string) error {
	page, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	return durable.WriteFile(strings.TrimSuffix(name, ".md")+".svg", []byte(plot(string(page))), 0o644)
}

package e2e

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the tables in the documentation from what the tests have found out")

// matrixPage is the page with the tables.
const matrixPage = "../../contrib/docs/containerd.md"

// A matrix is a table in the documentation of what works with which versions.
type matrix struct {
	name          string   // of its marker in the page
	columns, rows []string // in order
	cells         map[[2]string]string
}

func (m *matrix) set(row, column, words string) { m.cells[[2]string{row, column}] = words }

// markdown returns the table. A cell that was not run is taken from old.
func (m *matrix) markdown(old map[[2]string]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| | %s |\n|---%s|\n", strings.Join(m.columns, " | "), strings.Repeat("|---", len(m.columns)))
	for _, r := range m.rows {
		fmt.Fprintf(&b, "| %s |", r)
		for _, c := range m.columns {
			words, ok := m.cells[[2]string{r, c}]
			if !ok {
				words = old[[2]string{r, c}]
			}
			fmt.Fprintf(&b, " %s |", words)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// parseMatrix reads the cells of a table.
func parseMatrix(text string) map[[2]string]string {
	cells := map[[2]string]string{}
	var columns []string
	for line := range strings.Lines(text) {
		f := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range f {
			f[i] = strings.TrimSpace(f[i])
		}
		if columns == nil {
			columns = f
			continue
		}
		for i := 1; i < len(f) && i < len(columns); i++ {
			cells[[2]string{f[0], columns[i]}] = f[i]
		}
	}
	return cells
}

// compare compares the matrix with the page, or writes it there with -update.
func (m *matrix) compare(t *testing.T) {
	t.Helper()
	p, err := os.ReadFile(matrixPage)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := fmt.Sprintf("<!-- begin %s -->\n", m.name), fmt.Sprintf("<!-- end %s -->\n", m.name)
	before, rest, ok := strings.Cut(string(p), begin)
	old, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table: %s", matrixPage, begin)
	}
	fresh := m.markdown(parseMatrix(old))
	if fresh == old {
		return
	}
	if *update && !t.Failed() {
		if err := os.WriteFile(matrixPage, []byte(before+begin+fresh+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("%s is not what the tests found out; -update writes it (-page +tests):\n%s", matrixPage, cmp.Diff(old, fresh))
}

//go:build vm

package vm

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// A result is what came of a journey.
type result struct {
	machine, kernel, containerd, journey string

	ok   bool
	took time.Duration
}

// table has the results of all tests.
type table struct {
	mu   sync.Mutex // guards rows
	rows []result
}

var results table

func (t *table) add(r result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, r)
}

// String returns the results as a table in Markdown.
func (t *table) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	b.WriteString("\n| machine | kernel | containerd | journey | result | s |\n|---|---|---|---|---|---|\n")
	for _, r := range t.rows {
		said := "ok"
		if !r.ok {
			said = "**failed**"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %.0f |\n", r.machine, r.kernel, r.containerd, r.journey, said, r.took.Seconds())
	}
	return b.String()
}

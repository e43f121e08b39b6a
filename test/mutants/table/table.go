// Package table lists changes to the product that break promises of contrib/docs/security.md, each with
// the test that fails then. "make mutants" runs them; TestPromises looks whether they fit the page and the code.
package table

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// A Mutant is a change of one file.
type Mutant struct {
	Promise int    // the number in contrib/docs/security.md
	What    string // what is wrong with the change
	File    string // slashes, from the root of the repository
	Old     string // occurs once in the file
	New     string
	Pkg     string // the folder of the test, from the root of the repository
	Test    string // a test that the row of the promise names
}

func (m Mutant) String() string {
	return fmt.Sprintf("%d %s %s: %s", m.Promise, m.File, m.Test, m.What)
}

// Apply returns the changed content of the file.
func (m Mutant) Apply(p []byte) ([]byte, error) {
	if n := bytes.Count(p, []byte(m.Old)); n != 1 || m.Old == m.New {
		return nil, fmt.Errorf("%s has %q %d times, want it once and changed", m.File, m.Old, n)
	}
	return bytes.Replace(p, []byte(m.Old), []byte(m.New), 1), nil
}

// EndToEnd reports whether the tests of a package run the programs of the product.
func EndToEnd(pkg string) bool { return strings.HasPrefix(pkg, "test/") }

// Mutants are all rows.
var Mutants = slices.Concat(content, access, signatures, reading)

package main

import (
	"flag"
	"io"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/manualtest"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
)

var (
	update = flag.Bool("update", false, "write the command reference in contrib/docs")
	manDir = flag.String("man", "", "write the man page to this directory")
)

// TestManual compares the command reference with the texts of --help; -update writes it.
func TestManual(t *testing.T) {
	c := root(io.Discard, io.Discard)
	sections, err := manualtest.Sections("../../contrib/docs", false, "ballast(8)")
	if err != nil {
		t.Fatal(err)
	}
	if err := manualtest.Check("../../contrib/docs/commands.md", c, *update, *manDir, wire.ThisVersion().Version, sections...); err != nil {
		t.Error(err)
	}
}

package main

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/cmd/internal/manual"
)

var (
	update = flag.Bool("update", false, "write the command reference in contrib/docs")
	manDir = flag.String("man", "", "write the man page to this directory")
)

// TestManual compares the command reference with the texts of --help; -update writes it.
func TestManual(t *testing.T) {
	c := root(io.Discard, io.Discard)
	if err := manual.Update("../../contrib/docs/commands.md", "ballastd", manual.Markdown(c), *update); err != nil {
		t.Error(err)
	}
	if *manDir == "" {
		return
	}
	page := manual.Man(c, 8, admin.ThisVersion().Version)
	if err := os.WriteFile(filepath.Join(*manDir, "ballastd.8"), []byte(page), 0o644); err != nil {
		t.Error(err)
	}
}

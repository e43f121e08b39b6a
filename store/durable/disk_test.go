package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestSyncfsTells(t *testing.T) {
	for release, want := range map[string]bool{
		"": false, "unknown": false, "4.18.0-553.el8.x86_64": false, "5.7.19": false, "5.4.0-216-generic": false,
		"5.8": true, "5.10.0-35-amd64": true, "5.15.0-1": true, "6.1.0-37-amd64": true, "6.18.5": true, "10.0.0": true,
	} {
		if got := tells(release); got != want {
			t.Errorf("Linux %s: %v, want %v", release, got, want)
		}
	}
}

func TestTouch(t *testing.T) {
	dir := t.TempDir()
	if err := Touch(dir); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("it leaves %v, %v", left, err)
	}
	if err := Touch(filepath.Join(dir, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing directory: %v", err)
	}
}

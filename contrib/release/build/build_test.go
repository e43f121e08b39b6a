package build

import (
	"debug/buildinfo"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

// TestModules compares the modules with those that a program has recorded: each has a licence that is known.
func TestModules(t *testing.T) {
	b := &Build{Source: "../../..", Version: "v1"}
	ours, fleet := b.Ours(), b.Fleet()
	modules, err := Modules(t.Context(), Archs, ours, fleet)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var deps []*debug.Module
	for name, m := range map[string]Main{"ballastd": ours, KeylessName: ours, FleetName: fleet} {
		if err := m.Write(t.Context(), runtime.GOARCH, dir); err != nil {
			t.Fatal(err)
		}
		info, err := buildinfo.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		deps = append(deps, info.Deps...)
	}
	notices := string(Notices(modules))
	for _, d := range deps {
		if d.Path == module {
			continue // this repository
		}
		i := slices.IndexFunc(modules, func(m Module) bool { return m.Path == d.Path && m.Version == d.Version })
		if i < 0 || !strings.Contains(notices, d.Path+" "+d.Version+", ") {
			t.Errorf("%s %s is linked, and has no notice", d.Path, d.Version)
		}
	}
	for _, m := range modules {
		if len(m.Licences()) == 0 {
			t.Errorf("%s: the licence in %s is not known", m.Path, m.Texts[0].Name)
		}
	}
}

// TestLicences reads licences and notices in the directory of a package and above.
func TestLicences(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"LICENSE": "Apache License\nVersion 2.0, January 2004\n", "a/b/LICENCE.txt": "Permission is hereby granted, free of\ncharge, to any person obtaining a copy",
		"a/NOTICE": "made by\r\nothers", "c/LICENSE": "not linked", "license.go": "package x", "a/b/licensed.md": "no licence",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m := &Module{Path: "m"}
	for _, dir := range []string{"a/b", "a", "."} {
		if err := m.add(root, filepath.Join(root, dir)); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	for _, text := range m.Texts {
		names = append(names, text.Name)
	}
	if want := []string{"a/b/LICENCE.txt", "a/NOTICE", "LICENSE"}; !slices.Equal(names, want) {
		t.Errorf("texts %q, want %q", names, want)
	}
	if got, want := m.Licences(), []string{"Apache-2.0", "MIT"}; !slices.Equal(got, want) {
		t.Errorf("licences %q, want %q", got, want)
	}
	notices := string(Notices([]Module{*m, {Path: "other", Version: "v1", Texts: []Text{{"LICENSE", m.Texts[2].Text}}}}))
	if strings.Count(notices, "Apache License") != 1 || !strings.Contains(notices, "m, LICENSE\nother v1, LICENSE\n") || !strings.Contains(notices, "made by\nothers\n") {
		t.Errorf("notices: %s", notices)
	}
}

// TestFlags gives the linker what is known, in an order that does not change.
func TestFlags(t *testing.T) {
	b := &Build{Version: "v1", Commit: Commit{ID: "abc"}}
	want := b.flags()
	for range 20 {
		if got := b.flags(); got != want || strings.Contains(got, "date") {
			t.Fatalf("flags %q, want %q", got, want)
		}
	}
}

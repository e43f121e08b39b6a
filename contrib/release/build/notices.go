package build

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A Module is a module of which packages are linked into the programs.
type Module struct {
	Path, Version string
	Texts         []Text // at least one
}

// A Text is a licence or a notice.
type Text struct {
	Name string // relative to the module
	Text string
}

// goModule is the name of the standard library and the runtime, as in https://pkg.go.dev/std.
const goModule = "std"

// legal matches the names of licences and notices.
var legal = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([-.].*)?$`)

// Modules returns the modules whose packages are linked into programs for some architectures, ours and Go's own
// included. A module without a licence is an error.
func Modules(ctx context.Context, archs []string, programs ...Main) ([]Module, error) {
	found := map[string]*Module{}
	for _, m := range programs {
		for _, arch := range archs {
			if err := m.collect(ctx, arch, found); err != nil {
				return nil, err
			}
		}
	}
	if err := programs[0].addGo(ctx, found); err != nil {
		return nil, err
	}
	var all []Module
	for _, path := range slices.Sorted(maps.Keys(found)) {
		if len(found[path].Texts) == 0 {
			return nil, fmt.Errorf("%s has no licence in a file that is named like one", path)
		}
		slices.SortFunc(found[path].Texts, func(a, b Text) int { return cmp.Compare(a.Name, b.Name) })
		all = append(all, *found[path])
	}
	return all, nil
}

// collect adds the modules of programs for an architecture.
func (m *Main) collect(ctx context.Context, arch string, found map[string]*Module) error {
	args := append([]string{"list", "-deps", "-json=ImportPath,Dir,Standard,Module"}, m.Flags...)
	out, err := output(m.gocmd(ctx, arch, append(args, m.Packages...)...))
	if err != nil {
		return err
	}
	for d := json.NewDecoder(strings.NewReader(out)); ; {
		var p linked
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if p.Module != nil && (p.Module.Main || p.Module.Path == module) {
			p.Module.Version = m.Version
		}
		if err := p.collect(found); err != nil {
			return err
		}
	}
}

// linked is a linked package, as "go list" prints it.
type linked struct {
	ImportPath, Dir string
	Standard        bool
	Module          *struct {
		Path, Version, Dir string
		Main               bool
	}
}

// collect adds the licences and notices in the directory of a package and above it to those of its module.
func (p *linked) collect(found map[string]*Module) error {
	if p.Standard || p.Module == nil || strings.HasPrefix(p.Module.Path, module+"/") { // modules below ours are part of it
		return nil
	}
	key := p.Module.Path + "@" + p.Module.Version // programs can have different ones
	m := found[key]
	if m == nil {
		m = &Module{Path: p.Module.Path, Version: p.Module.Version}
		found[key] = m
	}
	for dir := p.Dir; ; dir = filepath.Dir(dir) {
		if err := m.add(p.Module.Dir, dir); err != nil || dir == p.Module.Dir {
			return err
		}
	}
}

// addGo adds the standard library.
func (m *Main) addGo(ctx context.Context, found map[string]*Module) error {
	out, err := output(m.gocmd(ctx, "", "env", "GOROOT", "GOVERSION"))
	if err != nil {
		return err
	}
	root, version, _ := strings.Cut(strings.TrimSpace(out), "\n")
	std := &Module{Path: goModule, Version: strings.TrimPrefix(version, "go")}
	found[goModule] = std
	err = std.add(root, root)
	if parent := filepath.Dir(root); err == nil && len(std.Texts) == 0 { // distributions have it elsewhere
		err = std.add(parent, parent)
	}
	return err
}

// add adds the licences and notices in a directory below root.
func (m *Module) add(root, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !legal.MatchString(e.Name()) || e.Type()&fs.ModeType != 0 || path.Ext(e.Name()) == ".go" {
			continue
		}
		name, err := filepath.Rel(root, filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		if slices.ContainsFunc(m.Texts, func(t Text) bool { return t.Name == name }) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		m.Texts = append(m.Texts, Text{Name: name, Text: strings.TrimSpace(strings.ReplaceAll(string(text), "\r\n", "\n"))})
	}
	return nil
}

// licences are what only one licence has, by its SPDX identifier.
var licences = []struct{ id, has string }{
	{"Apache-2.0", "Apache License Version 2.0, January 2004"},
	{"Apache-2.0", "Licensed under the Apache License, Version 2.0 (the \"License\")"}, // that alone; others have the text
	{"MPL-2.0", "Mozilla Public License Version 2.0"},
	{"MPL-2.0", "Mozilla Public License, version 2.0"}, // as HashiCorp writes it
	{"MIT", "Permission is hereby granted, free of charge, to any person obtaining a copy"},
	{"ISC", "Permission to use, copy, modify, and/or distribute this software for any purpose"},
	{"BSD-3-Clause", "to endorse or promote products derived from this software without specific prior written permission"},
	{"BSD-2-Clause", "Redistribution and use in source and binary forms"}, // also in the one above
}

// Licences returns the SPDX identifiers of the texts of a module.
func (m *Module) Licences() []string {
	var ids []string
	for _, t := range m.Texts {
		words, bsd := strings.Join(strings.Fields(t.Text), " "), false
		for _, l := range licences {
			if strings.Contains(words, l.has) && !(bsd && l.id == "BSD-2-Clause") {
				ids, bsd = append(ids, l.id), bsd || l.id == "BSD-3-Clause"
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Notices returns the licences and notices of modules as a text, each text once.
func Notices(modules []Module) []byte {
	var b bytes.Buffer
	b.WriteString("The programs are built from these Go modules, unchanged. Their sources are at https://pkg.go.dev/MODULE@VERSION.\n")
	users := map[string][]string{}
	var order []string
	for _, m := range modules {
		for _, t := range m.Texts {
			if users[t.Text] == nil {
				order = append(order, t.Text)
			}
			users[t.Text] = append(users[t.Text], strings.TrimSpace(m.Path+" "+m.Version)+", "+t.Name)
		}
	}
	for _, text := range order {
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(users[text], "\n"), text)
	}
	return b.Bytes()
}

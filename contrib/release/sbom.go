package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/ballast-dev/ballast/contrib/release/build"
)

// sbom writes what is linked into the programs of the packages and of the image, as they have it recorded themselves.
func (r *release) sbom(ctx context.Context) error {
	modules, err := build.Modules(ctx, r.archs, r.Ours(), r.Fleet())
	if err != nil {
		return err
	}
	licences := map[string][]string{}
	for _, m := range modules {
		licences[m.Path] = m.Licences()
	}
	linked := map[string]*debug.Module{} // by path and version: ballast-fleet is a module of its own
	for _, arch := range r.archs {
		t, err := r.tree("sbom-"+arch, func(t tree) error { return r.programs(ctx, arch, t, ".", r.Ours(), r.Fleet()) })
		if err != nil {
			return err
		}
		files, err := filepath.Glob(t.path("*"))
		if err != nil {
			return err
		}
		for _, file := range files {
			info, err := buildinfo.ReadFile(file)
			if err != nil {
				return err
			}
			std := &debug.Module{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}
			for _, d := range append(info.Deps, std) {
				if d.Replace == nil { // ours, in this repository
					linked[d.Path+"@"+d.Version] = d
				}
			}
		}
	}
	bom, err := r.bom(linked, licences)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := cdx.NewBOMEncoder(&b, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, "ballast_"+r.number()+"_sbom.cdx.json"), b.Bytes(), 0o644)
}

// bom returns the bill of materials of modules.
func (r *release) bom(linked map[string]*debug.Module, licences map[string][]string) (*cdx.BOM, error) {
	self := component("github.com/ballast-dev/ballast", r.Version)
	self.Type, self.Name, self.Licenses = cdx.ComponentTypeApplication, "ballast", spdx("Apache-2.0")
	self.Properties = &[]cdx.Property{{Name: "vcs:revision", Value: r.Commit.ID}}
	var all []cdx.Component
	var refs []string
	for _, key := range slices.Sorted(maps.Keys(linked)) {
		m := linked[key]
		c := component(m.Path, m.Version)
		if len(licences[m.Path]) == 0 {
			return nil, fmt.Errorf("the licence of %s is not known", m.Path)
		}
		c.Licenses = spdx(licences[m.Path]...)
		if m.Sum != "" {
			c.Properties = &[]cdx.Property{{Name: "go:sum", Value: m.Sum}}
		}
		all, refs = append(all, c), append(refs, c.BOMRef)
	}
	bom := cdx.NewBOM()
	id := sha256.Sum256([]byte(r.Version + " " + r.Commit.ID)) // the same release has the same number
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80            // a UUID of version 8
	bom.SerialNumber = fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:16])
	bom.Metadata = &cdx.Metadata{Timestamp: r.Commit.Time.Format(time.RFC3339), Component: &self}
	bom.Components, bom.Dependencies = &all, &[]cdx.Dependency{{Ref: self.BOMRef, Dependencies: &refs}}
	return bom, nil
}

// component returns a module as a component.
// https://github.com/package-url/purl-spec/blob/main/types-doc/golang-definition.md
func component(path, version string) cdx.Component {
	purl := "pkg:golang/" + path + "@" + version
	return cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: purl}
}

func spdx(ids ...string) *cdx.Licenses {
	var all cdx.Licenses
	for _, id := range ids {
		all = append(all, cdx.LicenseChoice{License: &cdx.License{ID: id}})
	}
	return &all
}

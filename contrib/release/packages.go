package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	"github.com/goreleaser/nfpm/v2/rpm"
)

const (
	summary     = "AI models as images of containerd"
	description = summary + `
A snapshotter, a differ and a registry facade for containerd: pods and
containers get AI models as read-only files, each stored once per node.
Run "ballast setup" after the installation.`
)

// writePackages writes the packages of an architecture.
func (r *release) writePackages(arch string, all []file) error {
	for format, p := range map[string]nfpm.Packager{"deb": deb.Default, "rpm": rpm.DefaultRPM} {
		if r.only != nil && !slices.Contains(r.only, format) {
			continue
		}
		info, err := r.info(arch, format, all)
		if err != nil {
			return err
		}
		if err := nfpm.Validate(info); err != nil {
			return err
		}
		var b bytes.Buffer
		if err := p.Package(info, &b); err != nil {
			return fmt.Errorf("%s: %w", format, err)
		}
		if err := os.WriteFile(filepath.Join(r.out, p.ConventionalFileName(info)), b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// info describes a package. Each format has its own files, because packaging changes them.
func (r *release) info(arch, format string, all []file) (*nfpm.Info, error) {
	info := &nfpm.Info{
		Name: "ballast", Arch: arch, Platform: "linux", Version: r.number(), Release: "1", MTime: r.Commit.Time,
		Maintainer: "ballast-dev <ballast-dev@users.noreply.github.com>", Vendor: "ballast-dev",
		Homepage: "https://github.com/ballast-dev/ballast", License: "Apache-2.0", Description: description, Section: "admin",
	}
	if format == "deb" {
		info.Release = "" // upstream's own package has none
	}
	info.RPM.BuildHost, info.RPM.Summary, info.RPM.Group = "localhost", summary, "System Environment/Daemons"
	scripts := func(name string) string { return filepath.Join(r.Source, "contrib/release/scripts", name) }
	info.Scripts = nfpm.Scripts{PostInstall: scripts("postinst"), PreRemove: scripts("prerm"), PostRemove: scripts("postrm")}
	for _, f := range all {
		if f.inPackage == "" || f.format != "" && f.format != format {
			continue
		}
		staged := filepath.Join(r.work, format+"-"+arch, f.inPackage)
		if err := os.MkdirAll(filepath.Dir(staged), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(staged, f.data, f.mode); err != nil {
			return nil, err
		}
		info.Contents = append(info.Contents, &files.Content{
			Source: staged, Destination: f.inPackage,
			FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: f.mode, MTime: r.Commit.Time},
		})
	}
	return info, nil
}

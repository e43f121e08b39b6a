package setup

import (
	"path/filepath"
	"strings"
)

// packageUnits is where packages have the units. Those in unitDir are used instead of units of the same name there.
const packageUnits = "/usr/lib/systemd/system"

// Place chooses where the programs are, for a set-up by the programs in a directory of this process's file system.
// Those of a package of the host are used where they are, and are the package's to replace and to remove; others are
// copied to BinDir, which is chosen if it was given as a flag.
func (o *Options) Place(programs string, chosen bool) error {
	o.complete()
	h := hostAt(o.Host)
	service, err := h.Text(filepath.Join(packageUnits, serviceName))
	if err != nil {
		return err
	}
	at, err := filepath.Rel(h.Root, programs)
	if err != nil {
		return err
	}
	at = filepath.Join("/", at)
	packaged := filepath.Join(h.Root, at) == programs && strings.Contains(service, "\nExecStart="+at+"/ballastd\n")
	switch {
	case packaged && (!chosen || o.BinDir == at):
		o.BinDir, o.Packaged = at, true
	case o.Packaged && !chosen: // the last set-up was by a package
		o.BinDir, o.Packaged = DefaultBinDir, false
	}
	return nil
}

// placed takes over from the last set-up what a removal needs.
func (o *Options) placed(last Options) {
	if o.NoService, o.Packaged = o.NoService || last.NoService, last.Packaged; last.Packaged {
		o.BinDir = last.BinDir
	}
}

// wantUnit is want for a unit, unless the package has the same.
func (b *builder) wantUnit(name, text, why string) error {
	if b.o.Packaged {
		have, err := b.Text(filepath.Join(packageUnits, name))
		if err != nil || have == text {
			return err
		}
	}
	return b.want(filepath.Join(unitDir, name), []byte(text), 0o644, daemonGroup, why)
}

// hasUnit reports whether there is a unit of ours.
func (v *view) hasUnit(name string) bool {
	return v.Exists(filepath.Join(unitDir, name)) || v.Exists(filepath.Join(packageUnits, name))
}

package doctor

import (
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
)

// dragonflyDir is where dfdaemon keeps blobs if its configuration names no other directory.
// https://github.com/dragonflyoss/client/blob/v1.5.1/dragonfly-client-config/src/lib.rs
const dragonflyDir = "/var/lib/dragonfly"

// copiesShare is the share of the disk that copies of dfdaemon may have without a warning.
const copiesShare = 0.1

// mirrors reports mirrors that send wrong bytes or do not answer, and how much disk their copies use.
func (d *Doctor) mirrors(h *wire.Health) {
	const check = "mirrors"
	if h == nil {
		return
	}
	if slices.ContainsFunc(d.Config.Mirror, config.Mirror.IsDragonfly) {
		n, err := diskUse(filepath.Join(d.Node.Root, dragonflyDir))
		switch {
		case err != nil:
			d.Warn(check, "", "the copies of Dragonfly were not counted: %v", err)
		case float64(n) > copiesShare*float64(h.Usage.Capacity):
			d.Warn(check, "lower the limits of gc.policy in dfdaemon.yaml", "dfdaemon keeps %s in %s, beside the %s of ballast: each model is on this node twice", bytes(n), dragonflyDir, bytes(h.Usage.Unique))
		default:
			d.OK(check, "dfdaemon keeps %s in %s, beside the %s of ballast", bytes(n), dragonflyDir, bytes(h.Usage.Unique))
		}
	}
	for _, m := range h.Mirrors {
		switch {
		case len(m.Shunned) > 0:
			registries := slices.Sorted(maps.Keys(m.Shunned))
			d.Fail(check, "repair its cache, or remove it from the configuration", "%s sent wrong bytes of models of %s, which has the right ones; it is not asked for them until %s",
				m.Address, strings.Join(registries, ", "), m.Shunned[registries[0]].Format(time.DateTime))
		case len(m.Resting) > 0:
			d.Warn(check, "check that it runs; it is asked again within a minute, and models come from the registry meanwhile", "%s, a mirror of %s, does not answer or is slow; last reason %s",
				m.Address, strings.Join(slices.Sorted(maps.Keys(m.Resting)), ", "), m.Why())
		default:
			d.OK(check, "%s is used", m.Address)
		}
	}
}

// diskUse returns the bytes of the disk that the files below a directory use; 0 if it does not exist. Files that are
// removed meanwhile do not count.
func diskUse(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil && !e.IsDir() {
			info, err = e.Info()
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if info != nil {
			n += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return err
	})
	return n, err
}

package doctor

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/api"
)

// mirrors reports mirrors that send wrong bytes or do not answer.
func (d *Doctor) mirrors(h *api.Health) {
	const check = "mirrors"
	if h == nil {
		return
	}
	for _, m := range h.Mirrors {
		switch {
		case len(m.Shunned) > 0:
			registries := slices.Sorted(maps.Keys(m.Shunned))
			d.Fail(check, "repair its cache, or remove it from the configuration", "%s sent wrong bytes of models of %s, which has the right ones; it is not asked for them until %s",
				m.Address, strings.Join(registries, ", "), m.Shunned[registries[0]].Format(time.DateTime))
		case len(m.Resting) > 0:
			d.Warn(check, "look whether it runs; it is asked again within a minute, and models come from the registry meanwhile", "%s, a mirror of %s, does not answer or is slow",
				m.Address, strings.Join(slices.Sorted(maps.Keys(m.Resting)), ", "))
		default:
			d.OK(check, "%s is used", m.Address)
		}
	}
}

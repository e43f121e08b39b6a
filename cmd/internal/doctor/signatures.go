package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/installer/snippet"
	"github.com/ballast-dev/ballast/convert/signature/keyless"
)

// keyless checks that the program is there that verifies keyless signatures, if a rule requires some.
func (d *Doctor) keyless() {
	for _, r := range d.Config.Verify.Rule {
		if !slices.ContainsFunc(r.Any, func(s config.Signer) bool { return s.TrustedRoot != "" }) {
			continue
		}
		if _, err := new(keyless.Program).Find(); err != nil {
			d.Fail("signatures", "copy it from the archive of the release that ballastd is from", "[[verify.rule]] %q: %v", r.Match, err)
			return
		}
	}
}

// signatures checks that images pass the facade if a rule requires their signatures. Closed registries
// are reached only through the facade, open ones also without it.
func (d *Doctor) signatures(closed, open []string) {
	d.keyless()
	const anyOther = "registry.invalid" // stands for a registry without a hosts.toml of its own
	wild := d.Config.Verify.Wild()
	if !slices.Contains(closed, snippet.DefaultRegistry) || slices.Contains(open, snippet.DefaultRegistry) {
		for _, host := range slices.Concat(d.Config.Verify.Hosts(), []string{anyOther}, slices.Sorted(maps.Keys(wild))) {
			if !slices.Contains(closed, host) {
				open = append(open, host)
			}
		}
	}
	for _, host := range distinct(open) {
		rule := d.Config.Verify.Requires(host)
		if host == snippet.DefaultRegistry || rule == "" {
			continue
		}
		name, closing := host, host
		switch pattern := wild[host]; {
		case host == anyOther:
			name, closing = "registries without a hosts.toml of their own", snippet.DefaultRegistry
		case pattern != "" && d.Config.Verify.Requires(anyOther) != "": // said already
			continue
		case pattern != "":
			name, closing = fmt.Sprintf("registries such as %s without a hosts.toml of their own", pattern), snippet.DefaultRegistry
		}
		fix := "ballast setup --registry " + strings.Join(distinct(append(slices.Clone(closed), closing)), ",")
		d.Fail("signatures", fix+", or before the rule one with mode = \"off\" for them",
			"[[verify.rule]] %q requires signatures, but containerd can ask %s without the facade: what the rule refuses is pulled all the same", rule, name)
	}
}

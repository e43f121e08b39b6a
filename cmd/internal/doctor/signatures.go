package doctor

import (
	"slices"

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
	if !slices.Contains(closed, snippet.DefaultRegistry) || slices.Contains(open, snippet.DefaultRegistry) {
		for _, host := range append(d.Config.Verify.Hosts(), anyOther) {
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
		name, fix := host, "ballast setup --registry "+host
		if host == anyOther {
			name, fix = "registries without a hosts.toml of their own", "ballast setup --registry "+snippet.DefaultRegistry
		}
		d.Fail("signatures", fix+", or before the rule one with mode = \"off\" for them",
			"[[verify.rule]] %q requires signatures, but containerd can ask %s without the facade: what the rule refuses is pulled all the same", rule, name)
	}
}

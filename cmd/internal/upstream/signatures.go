package upstream

import (
	"fmt"

	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/convert/signature"
)

// Rules reads the rules of [[verify.rule]] with their keys. Errors name the rule and the file.
func Rules(c *config.Config) ([]*signature.Rule, error) {
	var rules []*signature.Rule
	for i, r := range c.Verify.Rule {
		o := signature.RuleOptions{
			Name: r.Match, Matches: r.Matches, Mode: signature.Mode(r.Mode), DenyCode: r.DenyCode, Licenses: r.Licenses,
		}
		if r.Mode != config.VerifyOff {
			for _, s := range r.Any {
				o.Any = append(o.Any, signature.SignerOptions(s))
			}
		}
		rule, err := signature.NewRule(o)
		if err != nil {
			return nil, fmt.Errorf("configuration: verify.rule %d: %w", i+1, err)
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

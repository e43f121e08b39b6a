package kitops

import (
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/losses"
	"github.com/ballast-dev/ballast/convert/mediatype"
)

// Format is the format of ModelKits.
var Format = format.Format{
	Name:   mediatype.FormatKitOps,
	Detect: format.Types(mediatype.FormatKitOps),
	Parse:  parse,
	Losses: losses.Rules{
		Keys: losses.Union(
			losses.Places("package.", "name", "version", "description", "license", "authors"),
			losses.Places("model.", "path", "license", "format", "digest", "diffId"),
		),
		Config: "file Kitfile",
	},
}

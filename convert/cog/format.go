package cog

import (
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/losses"
	"github.com/ballast-dev/ballast/convert/mediatype"
)

// Format is the format of managed weights.
var Format = format.Format{
	Name:   mediatype.FormatCog,
	Detect: format.Types(mediatype.FormatCog),
	Parse:  parse,
	Losses: losses.Rules{Keys: losses.Places("", "name", "files")},
}

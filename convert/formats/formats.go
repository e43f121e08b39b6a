// Package formats lists the supported formats. It is the only place that names their packages.
package formats

import (
	"github.com/ballast-dev/ballast/convert/carton"
	"github.com/ballast-dev/ballast/convert/cog"
	"github.com/ballast-dev/ballast/convert/dockerai"
	"github.com/ballast-dev/ballast/convert/files"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/huggingface"
	"github.com/ballast-dev/ballast/convert/kitops"
	"github.com/ballast-dev/ballast/convert/layout"
	"github.com/ballast-dev/ballast/convert/modelpack"
	"github.com/ballast-dev/ballast/convert/ollama"
	"github.com/ballast-dev/ballast/convert/titled"
)

// all are the formats. Of two with the same claim to a manifest or a name, the first one is used.
var all = format.List{
	&layout.Format,
	&modelpack.Format,
	&modelpack.CNAI,
	&modelpack.Early,
	&dockerai.Format,
	&kitops.Format,
	&cog.Format,
	&ollama.Format,
	&ollama.Lists,
	&carton.Format,
	&huggingface.Format,
	&titled.Format,
	&files.Format,
}

// All returns the formats.
func All() format.List { return all }

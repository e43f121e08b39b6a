package dockerai

import (
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/losses"
	"github.com/ballast-dev/ballast/convert/mediatype"
)

// Format is the format of Docker Model Runner.
var Format = format.Format{
	Name:   mediatype.FormatDockerAI,
	Detect: format.Types(mediatype.FormatDockerAI),
	Parse:  parse,
	Losses: losses.Rules{
		Keys: losses.Union(
			losses.Places("config.", "format", "architecture", "parameters", "quantization", "gguf.architecture", "gguf.parameter_count", "gguf.quantization"),
			losses.Places("", "descriptor.created", "descriptor.createdAt", "rootfs", "files"),
			map[string]string{"config.context_size": losses.ContextAnnotation},
		),
		Words: map[string]func(string) string{
			"config.parameters": convert.ParamSize, "config.gguf.parameter_count": convert.ParamSize,
			"config.quantization": withoutPrefix, "config.gguf.quantization": withoutPrefix,
		},
	},
}

// withoutPrefix removes the prefixes that GGUF tools add to the name of a quantisation.
func withoutPrefix(s string) string {
	return strings.TrimPrefix(strings.TrimPrefix(s, "MOSTLY_"), "ALL_")
}

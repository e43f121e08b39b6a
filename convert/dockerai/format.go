package dockerai

import (
	"fmt"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/losses"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/containerd/errdefs"
)

// Format is the format of Docker Model Runner.
var Format = format.Format{
	Name:   mediatype.FormatDockerAI,
	Detect: format.Types(mediatype.FormatDockerAI),
	Parse:  parse,
	Page:   page,
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

// page returns the reference of a page of Docker Hub: hub.docker.com/r/ai/smollm2, perhaps with its tags.
func page(host string, path []string) (string, error) {
	switch {
	case host != "hub.docker.com":
		return "", nil
	case len(path) < 3 || len(path) > 4 || path[0] != "r" || len(path) == 4 && path[3] != "tags":
		return "", fmt.Errorf("a page that is not that of a model; write docker.io/ai/NAME:TAG: %w", errdefs.ErrInvalidArgument)
	}
	return "docker.io/" + path[1] + "/" + path[2], nil
}

// withoutPrefix removes the prefixes that GGUF tools add to the name of a quantisation.
func withoutPrefix(s string) string {
	return strings.TrimPrefix(strings.TrimPrefix(s, "MOSTLY_"), "ALL_")
}

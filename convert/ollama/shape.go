package ollama

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
)

// maxDims limits the dimensions of a tensor whose layer has no header.
const maxDims = 64

// parseShape parses a shape: integers separated by commas, with or without brackets; an empty list
// is the shape of a single element.
func parseShape(s string) ([]uint64, error) {
	bad := fmt.Errorf("shape %.100q is not a list of integers: %w", s, errdefs.ErrInvalidArgument)
	inner, open := strings.CutPrefix(strings.TrimSpace(s), "[")
	inner, closed := strings.CutSuffix(inner, "]")
	if open != closed {
		return nil, bad
	}
	shape := []uint64{}
	if strings.TrimSpace(inner) == "" {
		return shape, nil
	}
	for text := range strings.SplitSeq(inner, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
		if err != nil || len(shape) == maxDims {
			return nil, bad
		}
		shape = append(shape, n)
	}
	return shape, nil
}

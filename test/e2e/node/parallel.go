package node

import (
	"fmt"
	"strings"
)

// UnpackAtOnce returns an Options.Edit that makes pulls unpack several layers concurrently.
func UnpackAtOnce(layers int) func(string) string {
	const list = `[[plugins."io.containerd.transfer.v1.local".unpack_config]]`
	return func(dropIn string) string {
		before, after, _ := strings.Cut(dropIn, list)
		return fmt.Sprintf("%s[plugins.\"io.containerd.transfer.v1.local\"]\n  max_concurrent_unpacks = %d\n%s%s", before, layers, list, after)
	}
}

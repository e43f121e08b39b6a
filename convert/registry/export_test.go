package registry

import "time"

// Tests count requests at registries. How slow they are on a busy machine does not matter.
func init() { cacheTime = time.Hour }

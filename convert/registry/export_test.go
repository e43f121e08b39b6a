package registry

import "time"

// Tests count requests at registries. How slow they are on a busy machine does not matter.
func init() { cacheTime = time.Hour }

// SetTokenTime sets how long new tokens are valid, and returns what sets it back.
func SetTokenTime(d time.Duration) func() {
	old := tokenTime
	tokenTime = d
	return func() { tokenTime = old }
}

// ArchiveUsers returns how many uses of open archives have not ended.
func (h *Handler) ArchiveUsers() (n int) {
	h.archives.mu.Lock()
	defer h.archives.mu.Unlock()
	for _, c := range h.archives.m {
		n += c.users
	}
	return n
}

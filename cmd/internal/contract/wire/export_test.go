package wire

import "time"

// SetWorking sets how long the daemon may say nothing while it works.
func (c *Client) SetWorking(d time.Duration) { c.working = d }

package remote

// MaxHosts is maxHosts.
const MaxHosts = maxHosts

// Hosts returns the number of hosts in the cache.
func Hosts(c *Client) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.hosts)
}

// Ask looks up credentials with a time limit.
var Ask = ask

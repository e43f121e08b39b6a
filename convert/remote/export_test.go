package remote

// MaxHosts is maxHosts.
const MaxHosts = maxHosts

// Hosts returns the number of hosts that are remembered.
func Hosts(c *Client) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.hosts)
}

// Ask looks up credentials with a time limit.
var Ask = ask

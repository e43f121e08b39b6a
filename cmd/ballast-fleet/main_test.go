package main

import (
	"io"
	"strings"
	"testing"
)

// TestRefresh refuses an interval without which all agents would ask all the time.
func TestRefresh(t *testing.T) {
	c := root(io.Discard)
	c.SetArgs([]string{"agent", "--refresh=0"})
	if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "--refresh") {
		t.Errorf("got %v", err)
	}
}

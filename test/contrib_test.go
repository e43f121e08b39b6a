package test

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestUnit holds what the unit of the daemon must say: see the comments in it.
func TestUnit(t *testing.T) {
	p, err := os.ReadFile("../contrib/systemd/ballastd.service")
	if err != nil {
		t.Fatal(err)
	}
	section, lines := "", map[string][]string{}
	for line := range strings.Lines(string(p)) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			section = line
		default:
			lines[section] = append(lines[section], line)
		}
	}
	for _, want := range []string{
		"Type=notify", "EnvironmentFile=-/etc/default/ballastd", "ExecStart=/usr/local/bin/ballastd", "KillMode=process", "RuntimeDirectoryPreserve=restart", "LimitCORE=0",
	} {
		if !slices.Contains(lines["[Service]"], want) {
			t.Errorf("no %s in %q", want, lines["[Service]"])
		}
	}
}

package test

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestUnit checks the settings that the daemon's unit must have: see the comments in it.
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
		"Type=notify", "EnvironmentFile=-/etc/default/ballastd", "ExecStart=/usr/local/bin/ballastd", "KillMode=process", "RuntimeDirectoryPreserve=yes",
		"NoNewPrivileges=yes", "LimitCORE=0", "MemoryMax=2G", "OOMScoreAdjust=-500",
	} {
		if !slices.Contains(lines["[Service]"], want) {
			t.Errorf("no %s in %q", want, lines["[Service]"])
		}
	}
	for name, want := range map[string][]string{ // as contrib/docs/security.md says
		"CapabilityBoundingSet":   {"CAP_SYS_ADMIN CAP_DAC_OVERRIDE CAP_CHOWN CAP_FOWNER CAP_SETUID CAP_SETGID CAP_KILL"},
		"RestrictAddressFamilies": {"AF_UNIX AF_INET AF_INET6 AF_NETLINK"},
		"RestrictNamespaces":      {"yes"},
		"RestrictSUIDSGID":        {"yes"},
		"SystemCallFilter":        {"@system-service mount umount2 open_tree move_mount fchmodat2 cachestat", "~@keyring @aio"},
	} {
		var got []string
		for _, line := range lines["[Service]"] {
			if value, ok := strings.CutPrefix(line, name+"="); ok {
				got = append(got, value)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	for _, line := range lines["[Service]"] {
		for _, bad := range []string{"Private", "Protect", "ReadOnlyPaths", "InaccessiblePaths", "TemporaryFileSystem", "RootDirectory", "MountFlags", "UMask", "DevicePolicy"} {
			if strings.HasPrefix(line, bad) {
				t.Errorf("%s gives the daemon mounts of its own, or takes away what it needs", line)
			}
		}
	}
}

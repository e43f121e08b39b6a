package node

import (
	"context"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// requestVariables are what a Go program obeys when it asks registries. The names of proxies can be in lower case.
// https://pkg.go.dev/net/http#ProxyFromEnvironment, https://pkg.go.dev/crypto/x509#SystemCertPool
var requestVariables = []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"}

// Environment returns the variables of containerd's environment that requests to registries obey, or nil if it is
// unknown. Their values can have passwords.
func (v *View) Environment(ctx context.Context) map[string]string {
	if v.Root == "/" {
		if found := EnvironmentAt(v.Distro.Socket); found != nil {
			return found
		}
	}
	if !v.Systemd {
		return nil
	}
	text, err := v.Run(ctx, "systemctl", "show", "--property=Environment", "--property=EnvironmentFiles", v.Unit)
	if err != nil {
		return nil
	}
	var all []string
	var files []string
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key {
		case "Environment":
			all = append(all, words(value)...)
		case "EnvironmentFiles": // PATH (ignore_errors=yes)
			file, _, _ := strings.Cut(value, " (")
			files = append(files, file)
		}
	}
	for _, f := range files { // they come after the unit, and replace what it says
		text, err := v.Text(f)
		if err != nil {
			return nil
		}
		for name, value := range FileVariables(text) {
			all = append(all, name+"="+value)
		}
	}
	return ofRequests(all)
}

// FileVariables returns the variables in an EnvironmentFile of systemd.
func FileVariables(text string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		all[name] = strings.Trim(value, `"'`)
	}
	return all
}

// EnvironmentAt returns the same of the process that listens at a socket.
func EnvironmentAt(socket string) map[string]string {
	pid, err := listener(socket)
	if err != nil || pid <= 0 { // of another namespace
		return nil
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return nil
	}
	return ofRequests(strings.Split(string(text), "\x00"))
}

// ofRequests returns the variables that requests obey, among "NAME=VALUE". k3s and RKE2 have some for containerd alone.
// https://docs.k3s.io/advanced#configuring-an-http-proxy
func ofRequests(all []string) map[string]string {
	found := map[string]string{}
	for _, prefix := range []string{"", "CONTAINERD_"} {
		for _, one := range all {
			name, value, _ := strings.Cut(one, "=")
			if name, ok := strings.CutPrefix(name, prefix); ok && value != "" && slices.Contains(requestVariables, name) {
				found[name] = value
			}
		}
	}
	return found
}

// Lacks returns the names of variables, sorted, that another environment has in neither spelling.
func Lacks(other, variables map[string]string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(variables)), func(name string) bool {
		for have := range other {
			if strings.EqualFold(have, name) {
				return true
			}
		}
		return false
	})
}

// wordRE matches a word of a list as systemctl prints it: between quotes if it has blanks.
var wordRE = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|\S+`)

// words returns the words of a list that systemctl has printed.
func words(list string) []string {
	all := wordRE.FindAllString(list, -1)
	for i, w := range all {
		if plain, err := strconv.Unquote(w); err == nil {
			all[i] = plain
		}
	}
	return all
}

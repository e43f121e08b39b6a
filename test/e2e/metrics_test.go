package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/google/go-cmp/cmp"
)

// recordedMetrics are what the tests of test/chart/monitoring evaluate.
const recordedMetrics = "../chart/monitoring/testdata/ballastd.prom"

// TestMetrics has a node pull a model by a mirror, and another one from a registry. Its metrics have the names that
// the tests of alerts and dashboard evaluate; -update records them again.
func TestMetrics(t *testing.T) {
	n, mirror := node.StartNode(t, node.Options{}), node.StartRegistry(t, t.TempDir())
	a := converttest.ModelPackRaw(converttest.Files(weights(171, 4<<20)))
	ref := push(t, n, a)
	mirror.Push(t, "models/"+a.Name, "1", artifact(a))
	hosts := filepath.Join(n.Dir, "ballast.d", n.Registry.Host, "hosts.toml")
	direct, err := os.ReadFile(hosts)
	if err != nil {
		t.Fatal(err)
	}
	through := fmt.Sprintf("%s\n[host.\"http://%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", direct, mirror.Host)
	if err := os.WriteFile(hosts, []byte(through), 0o644); err != nil {
		t.Fatal(err)
	}
	mustPull(t, n, "ballast", ref)
	if err := os.WriteFile(hosts, direct, 0o644); err != nil {
		t.Fatal(err)
	}
	mustPull(t, n, "ballast", push(t, n, converttest.ModelPackRaw(converttest.Files(weights(172, 4<<20)))))
	var ours []string
	for line := range strings.Lines(n.Metrics()) {
		if strings.HasPrefix(line, "ballast_") {
			ours = append(ours, strings.ReplaceAll(line, mirror.Host, "mirror.example"))
		}
	}
	text := strings.Join(ours, "")
	for _, name := range []string{`ballast_registry_bytes_total`, `ballast_mirror_bytes_total\{mirror="http://mirror.example/v2"\}`} {
		if !regexp.MustCompile(`(?m)^` + name + ` [0-9.]+e\+06$`).MatchString(text) {
			t.Errorf("%s is not some megabytes:\n%s", name, text)
		}
	}
	if *update && !t.Failed() {
		if err := os.WriteFile(recordedMetrics, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p, err := os.ReadFile(recordedMetrics)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(metricNames(string(p)), metricNames(text)); d != "" {
		t.Errorf("%s has other metrics than a node; -update records them again (-recorded +node):\n%s", recordedMetrics, d)
	}
}

// metricNames returns the names in an answer with metrics.
func metricNames(text string) (names []string) {
	for line := range strings.Lines(text) {
		names = append(names, line[:strings.IndexAny(line, "{ ")])
	}
	slices.Sort(names)
	return slices.Compact(names)
}

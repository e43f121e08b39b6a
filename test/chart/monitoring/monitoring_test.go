package monitoring

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
)

// recorded are answers of a daemon, the controller and an agent, by the labels that a scrape adds.
var recorded = map[string]string{
	"ballastd.prom":   `job="ballast-system/ballast", instance="n1"`,
	"controller.prom": `job="ballast-system/ballast-fleet", instance="c1"`,
	"agent.prom":      `job="ballast-system/ballast-agent", instance="n1:9758"`,
}

var sample = regexp.MustCompile(`^(\w+)(?:\{(.*)\})? (\S+)$`)

// recordedSeries returns the recorded metrics as input of promqltest, each with its value for an hour, and their names.
func recordedSeries(t *testing.T) (load string, names map[string]bool) {
	t.Helper()
	var b strings.Builder
	names = map[string]bool{}
	b.WriteString("load 1m\n")
	for file, labels := range recorded {
		p, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(p)) {
			m := sample.FindStringSubmatch(strings.TrimSpace(line))
			if m == nil {
				continue // a comment
			}
			names[m[1]] = true
			if m[2] != "" {
				m[2] += ", "
			}
			fmt.Fprintf(&b, "  %s{%s%s} %sx60\n", m[1], m[2], labels, m[3])
		}
	}
	if len(names) < 30 {
		t.Fatalf("only %d metrics are recorded", len(names))
	}
	return b.String(), names
}

// ask evaluates an expression at a time after the beginning of the series.
func ask(t *testing.T, s storage.Queryable, expr string, at time.Duration) promql.Vector {
	t.Helper()
	q, err := promqltest.NewTestEngine(t, false, 5*time.Minute, 1e6).NewInstantQuery(t.Context(), s, nil, expr, time.Unix(0, 0).Add(at))
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	defer q.Close()
	r := q.Exec(t.Context())
	v, err := r.Vector()
	if r.Err != nil || err != nil {
		t.Fatalf("%s: %v, %v", expr, r.Err, err)
	}
	return v
}

// wantKnown wants each metric of an expression to be one that was recorded.
func wantKnown(t *testing.T, expr string, names map[string]bool) {
	t.Helper()
	e, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		if v, ok := n.(*parser.VectorSelector); ok && !names[v.Name] {
			t.Errorf("%s: nothing has the metric %s", expr, v.Name)
		}
		return nil
	})
}

// rules returns the alerts of the file by name.
func rules(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.ParseFile("../../../contrib/monitoring/rules.yaml", false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.Default())
	for _, err := range errs {
		t.Error(err)
	}
	out := map[string]rulefmt.Rule{}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			out[r.Alert] = r
		}
	}
	return out
}

// TestAlerts has each alert fire on series that it is for, for as long as it wants, and not on those of a well node
// or before.
func TestAlerts(t *testing.T) {
	load, names := recordedSeries(t)
	names["up"] = true
	var well strings.Builder
	for line := range strings.Lines(load) {
		if !strings.Contains(line, "ballast_fleet_set_nodes{") && !strings.Contains(line, "ballast_fleet_nodes{") { // nodes of the recorded sets fail
			well.WriteString(line)
		}
	}
	for _, s := range []string{"desired", "ready"} {
		fmt.Fprintf(&well, "  ballast_fleet_set_nodes{set=%q, state=%q} 3x60\n", "chat", s)
	}
	well.WriteString("  ballast_fleet_set_nodes{set=\"chat\", state=\"failed\"} 0x60\n  ballast_pull_duration_seconds_count{instance=\"n1\", result=\"notfound\", by=\"prefetch\"} 0+1x60\n")
	for _, state := range []string{"desired", "ready"} {
		fmt.Fprintf(&well, "  ballast_fleet_nodes{state=%q} 100x60\n", state)
	}
	for _, job := range []string{"ballast", "ballast-agent", "ballast-fleet"} {
		fmt.Fprintf(&well, "  up{job=\"ballast-system/%s\", instance=\"n1\"} 1x60\n", job)
	}
	healthy := promqltest.LoadedStorage(t, well.String())
	cases := map[string]string{ // series of two hours: they are well for one
		"BallastDown":           `up{job="ballast-system/ballast", instance="n1"} 1x60 0x60`,
		"BallastFacadeDown":     `ballast_facade_up{instance="n1"} 1x60 0x60`,
		"BallastDamagedFiles":   `ballast_damaged_objects_total{instance="n1"} 0x60 1x60`,
		"BallastReadsFail":      `ballast_lazy_failed_reads_total{instance="n1"} 0x60 1+1x60`,
		"BallastReadsWait":      `ballast_lazy_waiting_reads{instance="n1"} 0x60 3x60`,
		"BallastPullsFail":      `ballast_pull_duration_seconds_count{instance="n1", result="unavailable", by="containerd"} 0x60 1+1x60`,
		"BallastDiskFull":       "ballast_store_bytes{instance=\"n1\", kind=\"free\"} 50x60 1x60\n  ballast_store_bytes{instance=\"n1\", kind=\"capacity\"} 100x120",
		"BallastMirrorLies":     `ballast_mirror_wrong_total{instance="n1", mirror="http://m"} 0x60 1x60`,
		"BallastNodesDown":      "ballast_fleet_nodes{state=\"ready\"} 95x60 94x60\n  ballast_fleet_nodes{state=\"desired\"} 100x120",
		"BallastNodeNotReady":   "ballast_fleet_nodes{state=\"ready\"} 100x60 99x90\n  ballast_fleet_nodes{state=\"desired\"} 100x150",
		"BallastAgentsSilent":   "up{job=\"ballast-system/ballast-agent\", instance=\"n1:9758\"} 1x60 0x60\n  up{job=\"ballast-system/ballast-agent\", instance=\"n2:9758\"} 1x120",
		"BallastControllerDown": "up{job=\"ballast-system/ballast-agent\", instance=\"n1:9758\"} 1x120\n  up{job=\"ballast-system/ballast-fleet\", instance=\"c1\"} 1x60 0x60",
		"ModelSetFailed":        `ballast_fleet_set_nodes{set="chat", state="failed"} 0x60 2x60`,
		"ModelSetLate":          `ballast_fleet_set_nodes{set="chat", state="late"} 0x60 2x60`,
	}
	all := rules(t)
	if len(all) != len(cases) {
		t.Errorf("%d alerts, %d cases", len(all), len(cases))
	}
	for name, r := range all {
		wantKnown(t, r.Expr, names)
		for _, key := range []string{"summary", "description", "page"} {
			if r.Annotations[key] == "" {
				t.Errorf("%s has no %s", name, key)
			}
		}
		if _, err := os.Stat(filepath.Join("../../..", r.Annotations["page"])); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if v := ask(t, healthy, r.Expr, time.Hour); len(v) > 0 {
			t.Errorf("%s fires on a node that is well: %v", name, v)
		}
		ill := promqltest.LoadedStorage(t, "load 1m\n  "+cases[name]+"\n")
		if v := ask(t, ill, r.Expr, 59*time.Minute); len(v) > 0 {
			t.Errorf("%s fires before there is a reason: %v", name, v)
		}
		begin := 75 * time.Minute
		for at := begin; at <= begin+time.Duration(r.For); at += time.Minute {
			if v := ask(t, ill, r.Expr, at); len(v) != 1 {
				t.Errorf("%s at %v: %v", name, at, v)
				break
			}
		}
	}
}

// TestDashboard evaluates each expression of the dashboard on the recorded metrics, which must give something to draw.
func TestDashboard(t *testing.T) {
	load, names := recordedSeries(t)
	s := promqltest.LoadedStorage(t, load)
	p, err := os.ReadFile("../../../contrib/monitoring/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Type, Title, Description string
			Targets                  []struct{ Expr, LegendFormat string }
		}
		Templating struct {
			List []struct{ Name, Query string }
		}
	}
	if err := json.Unmarshal(p, &d); err != nil {
		t.Fatal(err)
	}
	fill := strings.NewReplacer("$node", ".*", "$__rate_interval", "5m")
	n := 0
	for _, panel := range d.Panels {
		if panel.Type == "row" {
			continue
		}
		if panel.Description == "" || len(panel.Targets) == 0 {
			t.Errorf("%s has no description, or nothing to draw", panel.Title)
		}
		for _, target := range panel.Targets {
			n++
			expr := fill.Replace(target.Expr)
			wantKnown(t, expr, names)
			if v := ask(t, s, expr, 30*time.Minute); len(v) == 0 {
				t.Errorf("%s: %s gives nothing", panel.Title, expr)
			}
		}
	}
	if n < 15 {
		t.Errorf("%d expressions", n)
	}
	for _, v := range d.Templating.List {
		if m := regexp.MustCompile(`^label_values\((\w+), instance\)$`).FindStringSubmatch(v.Query); v.Name == "node" && (m == nil || !names[m[1]]) {
			t.Errorf("%s: %s", v.Name, v.Query)
		}
	}
}

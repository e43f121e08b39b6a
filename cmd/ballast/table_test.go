package main

import (
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/opencontainers/go-digest"
)

// TestTablesFit prints every table with names as they are in registries. On a terminal of 80 columns no line is wider but
// those that are one name or one command; names and commands are whole. Elsewhere each row is one line, in full.
func TestTablesFit(t *testing.T) {
	const (
		ref     = "ghcr.io/organisation/very-long-model-name-instruct-2507-gguf:q4_k_m"
		command = "ctr -n k8s.io images rm --sync " + ref
		why     = "the server answered 503 Service Unavailable: no healthy upstream is left for this request"
	)
	d, now := digest.FromString("x"), time.Now()
	im := wire.Image{
		Record: wire.Record{Refs: []string{ref}, Manifest: d, Table: d, Size: 4_250_000_000, Used: now.Add(-90 * time.Minute)},
		State:  wire.StateLazy, Total: 1000, Completed: 450, Rate: 2, Snapshots: 1, Share: &wire.Share{Own: 4_100_000_000, Shared: 150_000_000},
		Pins: []wire.Ref{{Name: ref, Expires: now.Add(72*time.Hour + time.Minute)}},
	}
	im.Origin = wire.Origin{Format: "cnai-early", Digest: d}
	plain := im
	plain.Share = nil
	job := wire.Job{
		Kind: wire.KindContainerd, Ref: ref, Table: d, Started: now.Add(-3*time.Minute - time.Second), Total: 42_500_000_000, Completed: 19_000_000_000, Rate: 112_000_000,
		Waiting: 12, Reads: 34, Limit: "network", Ordered: true,
	}
	failed := wire.Job{Kind: wire.KindPrefetch, Ref: ref, Ended: now.Add(-2 * time.Hour), Error: &wire.Error{Message: ref + ": " + why}}
	mirrors := []wire.Mirror{{Address: "https://mirror-of-the-registry.eu-central-1.example.com:5001", Last: &wire.Left{At: now, Reason: "slow", Error: why}}}
	detail := wire.Detail{Image: im, Files: []wire.File{{Path: "text_encoder/model-00001-of-00002.fp16.safetensors", Size: 1 << 33, Digest: d, Mode: 0o644, UID: 1000, GID: 1000}}}
	for name, tt := range map[string]struct {
		print func(a *app) error
		whole []string // in the output on a terminal
	}{
		"ls": {func(a *app) error { return a.list([]wire.Image{plain}, outTable) }, []string{ref, shortDigest(d.String()), "REFERENCE"}},
		"ls: early": {func(a *app) error {
			late := plain
			late.Eager, late.State = why, wire.StatePulling
			early := plain
			early.Early, early.State = "by tables of hash states of registry.example/tables (key k1)", wire.StateLazy
			return a.list([]wire.Image{early, late}, outTable)
		}, []string{ref, "is read before it is complete by tables of hash states", "is shown when it is complete:", "left for this request"}},
		"ls --size":       {func(a *app) error { return a.list([]wire.Image{im, im}, outTable) }, []string{ref, "4.1 GB", "OWN"}},
		"df":              {func(a *app) error { return a.table(usageRows(wire.Usage{Logical: 123e9, Objects: 45678})) }, []string{"RECLAIMABLE"}},
		"df -v":           {func(a *app) error { return a.table(shareRows([]wire.Image{im})) }, []string{ref}},
		"status":          {func(a *app) error { return a.status(wire.Status{Jobs: []wire.Job{job, failed}}) }, []string{ref, "112 MB/s", "network", "12", "34", "left for this request"}},
		"top: registries": {func(a *app) error { return a.table(registryRows([]wire.Job{job})) }, []string{"ghcr.io"}},
		"top: mirrors":    {func(a *app) error { return a.table(mirrorRows(mirrors)) }, []string{mirrors[0].Address}},
		"why": {func(a *app) error {
			im := im
			im.Eager = why
			return a.why(wire.Why{Image: im, Holders: []wire.Holder{{Kind: wire.HoldImage, Name: ref, Namespace: "k8s.io", End: command}, {Kind: wire.HoldPin, Name: ref, End: "ballast unpin " + ref}}})
		}, []string{command, "ballast unpin " + ref}},
		"pin ls": {func(a *app) error {
			return a.pins([]wire.Pin{{Ref: wire.Ref{Name: ref, Expires: now.Add(time.Hour)}, Digest: d, Moved: digest.FromString("y")}}, outTable)
		}, []string{ref}},
		"mount ls": {func(a *app) error {
			return a.mounts([]wire.Mount{{Dir: "/srv/inference/models/very-long-model-name", Name: ref, Created: now, Mounted: true}}, outTable)
		}, []string{ref, "/srv/inference/models/very-long-model-name"}},
		"inspect": {func(a *app) error { return a.detail(detail) }, []string{ref, detail.Files[0].Path}},
		"convert --dry-run": {func(a *app) error {
			return a.table([][]string{{"LAYER", "SIZE", "DIGEST", "STATE"}, {detail.Files[0].Path, "8.6 GB", d.String(), "in the registry"}})
		}, []string{detail.Files[0].Path}},
		"convert --dry-run, all": {func(a *app) error {
			return a.planned(ref, &export.Result{Layers: []export.Layer{{Name: detail.Files[0].Path, Digest: d, Size: 1 << 33, State: "in the registry"}}})
		}, []string{detail.Files[0].Path}},
		"verify --signatures": {func(a *app) error {
			return a.table(signatureRows([]wire.SignatureResult{{State: wire.SignatureRefused, Rule: "team", Mode: "enforce", Reasons: []string{why}}}))
		}, []string{"left for this request"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			if err := tt.print(&app{stdout: &out, width: 80}); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(out.String()) {
				line = strings.TrimSuffix(line, "\n")
				if text := strings.TrimSpace(line); cells(line) > 80 && strings.Contains(text, " ") && !strings.HasPrefix(text, "ends with: ") {
					t.Errorf("a line of %d columns: %s", cells(line), line)
				}
				if line != strings.TrimRight(line, " ") {
					t.Errorf("spaces at the end of %q", line)
				}
			}
			for _, w := range tt.whole {
				if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), w) {
					t.Errorf("no %q in", w)
				}
			}
			if t.Failed() || testing.Verbose() {
				t.Logf("\n%s", out.String())
			}
			var piped strings.Builder
			if err := tt.print(&app{stdout: &piped}); err != nil {
				t.Fatal(err)
			}
			if strings.Count(piped.String(), "\n") > strings.Count(out.String(), "\n") || len(strings.Fields(piped.String())) < len(strings.Fields(out.String()))-2*len(tt.whole) {
				t.Errorf("without a terminal:\n%s", piped.String())
			}
		})
	}
}

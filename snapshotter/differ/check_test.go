package differ

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// TestCheck checks that Check is asked before a byte of a model is fetched and, if it cannot decide
// then, when the model is complete.
func TestCheck(t *testing.T) {
	refused := fmt.Errorf("it is not signed: %w", errdefs.ErrFailedPrecondition)
	for _, tt := range []struct {
		name          string
		before, after error
		pending       bool
		asked         []string
		shown         bool
	}{
		{"allowed", nil, nil, false, []string{"before"}, true},
		{"refused", refused, nil, false, []string{"before"}, false},
		{"pending", nil, nil, true, []string{"before", "complete"}, true},
		{"pending and refused", nil, refused, true, []string{"before", "complete"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			weights := storetest.Random(1, 1<<20)
			n.upstream = storetest.NewFetcher(weights)
			desc := n.put(t, filetable.MediaTypeTableLayer, encode(t, []string{"w"}, weights), from("registry.example", "team/m"))
			var asked []string
			n.differ.o.Check = func(ctx context.Context, table digest.Digest, from []Repository, complete bool) (bool, error) {
				if diff := cmp.Diff(from, []Repository{{"registry.example", "team/m"}}); diff != "" || table != desc.Digest {
					t.Errorf("asked about %s, from (-got +want):\n%s", table, diff)
				}
				if _, err := n.store.Views.Files(table); complete != (err == nil) {
					t.Errorf("complete %v, but %v", complete, err)
				}
				if complete {
					asked = append(asked, "complete")
					return false, tt.after
				}
				asked = append(asked, "before")
				return tt.pending, tt.before
			}
			_, err := n.applier.Apply(n.ctx, desc, n.prepare(t, "a", ""))
			if tt.shown != (err == nil) || err != nil && (!errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "it is not signed")) {
				t.Errorf("apply: %v", err)
			}
			if diff := cmp.Diff(asked, tt.asked); diff != "" {
				t.Errorf("asked (-got +want):\n%s", diff)
			}
			refs := n.store.Catalog.Refs("snapshot/")
			for _, r := range refs {
				if n.snap.Shows(r) != tt.shown {
					t.Errorf("snapshot shows the model: %v", !tt.shown)
				}
			}
		})
	}
}

// TestShowIsBrief: a snapshot that waits for a source that hangs is refused in time, with what there is, and the download
// goes on for the next one.
func TestShowIsBrief(t *testing.T) {
	n := newNode(t)
	weights := storetest.Random(9, 1<<20)
	f, gate := storetest.NewFetcher(weights), make(chan struct{})
	f.Delay = func(ctx context.Context) {
		select {
		case <-gate:
		case <-ctx.Done():
		}
	}
	table, err := n.store.PutTable(encode(t, []string{"w"}, weights))
	if err != nil {
		t.Fatal(err)
	}
	id, err := n.snap.Locate(n.ctx, n.prepare(t, "a", ""))
	if err != nil {
		t.Fatal(err)
	}
	show := func(patience time.Duration) error {
		n.differ.patience = patience
		return n.differ.Show(n.ctx, id, table, nil, storetest.FromRepository("registry.example/team/m", f))
	}
	if err := show(time.Millisecond); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "0 of 1048576 bytes are here") {
		t.Errorf("while the source hangs: %v", err)
	}
	work := n.store.Work()
	if len(work) != 1 || work[0].Table != table {
		t.Errorf("what is downloaded after that: %+v", work)
	}
	close(gate)
	if err := show(time.Hour); err != nil {
		t.Error(err)
	}
	if d := digest.FromBytes(weights); f.Calls(d) != 1 {
		t.Errorf("the file was asked for %d times", f.Calls(d))
	}
}

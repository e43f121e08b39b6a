package admin_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/admin"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// put records an image of a table.
func (r *rig) put(t *testing.T, ref string, table digest.Digest) store.Image {
	t.Helper()
	manifest, err := r.store.PutBytes([]byte("{\"manifest of\":\"" + ref + "\"}"))
	if err != nil {
		t.Fatal(err)
	}
	im := store.Image{Manifest: manifest, Config: manifest, Table: table, Refs: []string{ref},
		Origin: filetable.Origin{Format: "test", Digest: digest.FromString(ref), Mapping: 1}}
	if err := r.store.PutImage(im); err != nil {
		t.Fatal(err)
	}
	return im
}

// state returns the image with a manifest from the list of all images.
func (r *rig) state(t *testing.T, manifest digest.Digest) wire.Image {
	t.Helper()
	all, err := r.client.Images(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, im := range all {
		if im.Manifest == manifest {
			return im
		}
	}
	t.Fatalf("%s is not in %+v", manifest, all)
	return wire.Image{}
}

// An image that cannot be shown hides no other.
func TestInvalidImageHidesNoOther(t *testing.T) {
	r := newRig(t)
	r.hydrate(t)
	noTable := r.put(t, "reg.example/no/table:v1", digest.FromString("gone"))
	index := r.put(t, "reg.example/index:v1", "") // its bytes are not an index
	for _, im := range []store.Image{noTable, index} {
		got := r.state(t, im.Manifest)
		if got.State != wire.StateInvalid || got.Error == nil || got.Error.Message == "" {
			t.Errorf("%v: state %q, error %v", im.Refs, got.State, got.Error)
		}
		d, err := r.client.Image(t.Context(), im.Refs[0])
		if err != nil || d.State != wire.StateInvalid || d.Error == nil || d.Manifest != im.Manifest || d.Origin != wire.Origin(im.Origin) {
			t.Errorf("%v: inspect %+v, %v", im.Refs, d, err)
		}
	}
	if got := r.state(t, r.image.Manifest); got.State != wire.StateComplete {
		t.Errorf("the other image: state %q", got.State)
	}
	for _, ref := range []string{noTable.Refs[0], index.Refs[0]} {
		if _, err := r.client.RemoveImage(t.Context(), ref, false); err != nil {
			t.Errorf("remove %s: %v", ref, err)
		}
	}
}

// TestStatesOfDownload checks the state of a model from its first byte to its last.
func TestStatesOfDownload(t *testing.T) {
	r := newRig(t)
	other := storetest.Random(5, 1<<20)
	table := storetest.NewBuilder("two").Raw("a.bin", r.weights, 0o644).Raw("b.bin", other, 0o644).Put(t, r.store)
	im := r.put(t, "reg.example/two:v1", table)
	if got := r.state(t, im.Manifest); got.State != wire.StateAbsent {
		t.Errorf("before: state %q, want absent", got.State)
	}
	gate := make(chan struct{})
	asked := make(chan struct{}, 100)
	f := storetest.NewFetcher(r.weights, other)
	f.Delay = func(ctx context.Context) {
		asked <- struct{}{}
		select {
		case <-gate:
		case <-ctx.Done():
		}
	}
	done := make(chan error, 1)
	go func() {
		done <- r.store.Hydrate(context.Background(), table, store.HydrateOptions{Sources: storetest.From(f)})
	}()
	<-asked
	got := r.state(t, im.Manifest)
	if want := int64(len(r.weights) + len(other)); got.State != wire.StatePulling || got.Eager != "it is not" || got.Total != want || got.Completed >= want {
		t.Errorf("while fetching: state %q, %d of %d bytes, want pulling of %d", got.State, got.Completed, got.Total, want)
	}
	// Its jobs report why it stands still, and when it ends if no client waits for any of them.
	ends := time.Now().Add(time.Minute).UTC()
	abandoned := wire.Job{Kind: wire.KindAbandoned, Table: table, Rate: 3, Ends: ends}
	failing := wire.Job{Kind: wire.KindBackground, Table: table, Rate: 2, Error: &wire.Error{Code: "unavailable", Message: "down"}}
	r.status.Jobs = []wire.Job{abandoned, {Table: table, Rate: 9, Ended: ends, Error: failing.Error}}
	if got := r.state(t, im.Manifest); got.Rate != 3 || !got.Ends.Equal(ends) || got.Error != nil {
		t.Errorf("abandoned: %+v", got)
	}
	r.status.Jobs = []wire.Job{abandoned, failing}
	if got := r.state(t, im.Manifest); got.Rate != 3 || !got.Ends.IsZero() || got.Error == nil || got.Error.Message != "down" {
		t.Errorf("failing: %+v", got)
	}
	r.status.Jobs = nil
	close(gate)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := r.state(t, im.Manifest); got.State != wire.StateComplete || got.Total != 0 {
		t.Errorf("after: %+v", got)
	}
	// Garbage collection removes what a reference released; then one file comes back with another
	// model.
	if _, err := r.client.Pin(t.Context(), wire.PinRequest{Name: im.Refs[0]}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.Unpin(t.Context(), im.Refs[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.GC(t.Context(), wire.GCOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := r.state(t, im.Manifest); got.State != wire.StateAbsent {
		t.Errorf("after the collector: state %q, want absent", got.State)
	}
	r.hydrate(t)
	if got := r.state(t, im.Manifest); got.State != wire.StatePartial {
		t.Errorf("with one file of two: state %q, want partial", got.State)
	}
}

// TestRemoveInUse checks which files stay.
func TestRemoveInUse(t *testing.T) {
	r := newRig(t)
	r.hydrate(t)
	if err := r.store.AddRef("snapshot/3", r.image.Table, time.Time{}); err != nil {
		t.Fatal(err)
	}
	gone, err := r.client.RemoveImage(t.Context(), testRef, false)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(gone.InUse, []digest.Digest{r.image.Manifest}); diff != "" {
		t.Errorf("in use (got, want):\n%s", diff)
	}
}

// TestRemoveIndexPin removes an index whose model stays, because it has a tag of its own.
func TestRemoveIndexPin(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	const ref = "reg.example/team/list:v1"
	d, err := r.store.PutBytes(fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[`+
		`{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"size":16,"platform":{"os":"linux","architecture":"amd64"}}]}`, r.image.Manifest))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.store.PutImage(store.Image{Manifest: d, Origin: filetable.Origin{Format: "index", Digest: digest.FromString("o"), Mapping: 1}, Refs: []string{ref}}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{ref, testRef} {
		if _, err := r.client.Pin(ctx, wire.PinRequest{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.client.RemoveImage(ctx, ref, false); err != nil {
		t.Fatal(err)
	}
	pins, err := r.client.Pins(ctx)
	if err != nil || len(pins) != 1 || pins[0].Name != testRef {
		t.Errorf("pins that are left: %+v, %v", pins, err)
	}
	if pins[0].ModelSize != r.image.Size {
		t.Errorf("size of the pinned model: got %d, want %d", pins[0].ModelSize, r.image.Size)
	}
}

// A second pin of a model also has the model's size, although nothing is attributed to it.
func TestPinSize(t *testing.T) {
	r := newRig(t)
	r.hydrate(t)
	r.add(t, "reg.example/team/model:v2")
	for _, name := range []string{testRef, "reg.example/team/model:v2"} {
		pins, err := r.client.Pin(t.Context(), wire.PinRequest{Name: name})
		if err != nil || len(pins) != 1 || pins[0].ModelSize != r.image.Size {
			t.Errorf("%s: %+v, %v, want %d bytes", name, pins, err, r.image.Size)
		}
	}
}

// A model that cannot be downloaded again does not prevent the repair of others.
func TestRepairContinuesAfterError(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	r.hydrate(t)
	lost := storetest.Random(9, 1<<20)
	im := r.put(t, "reg.example/lost:v1", storetest.NewBuilder("lost").Raw("lost.bin", lost, 0o644).Put(t, r.store))
	if err := r.store.Hydrate(ctx, im.Table, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(lost))}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{testRef, im.Refs[0]} {
		if _, err := r.client.Pin(ctx, wire.PinRequest{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	path := func(p []byte) string {
		return filepath.Join(r.store.ObjectsDir(), store.ObjectName(digest.FromBytes(p)))
	}
	if err := os.Remove(path(r.weights)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path(lost), []byte("damage"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, repair := range []bool{false, true} {
		res, err := r.client.Verify(ctx, wire.VerifyRequest{Repair: repair}, func(wire.VerifyEvent) {})
		problems := map[digest.Digest]string{}
		for _, b := range res.Bad {
			problems[b.Digest] = b.Problem
		}
		if len(problems) != 2 || problems[digest.FromBytes(r.weights)] != "missing" || problems[digest.FromBytes(lost)] == "" {
			t.Fatalf("repair %v: found %v", repair, problems)
		}
		if !repair {
			if err != nil || res.Left != 2 {
				t.Errorf("report: %+v, %v", res, err)
			}
			continue
		}
		if !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), im.Refs[0]) {
			t.Errorf("repair: got %v, want ErrNotFound of %s", err, im.Refs[0])
		}
		if diff := cmp.Diff(res.Repaired, []string{testRef}); diff != "" || res.Left != 1 {
			t.Errorf("%d left; repaired (got, want):\n%s", res.Left, diff)
		}
	}
	if p, err := os.ReadFile(path(r.weights)); err != nil || string(p) != string(r.weights) {
		t.Errorf("the missing object is not back: %v", err)
	}
	if _, err := os.Stat(path(lost)); !os.IsNotExist(err) {
		t.Errorf("the damaged object is in service: %v", err)
	}
}

// A damaged table, manifest or config is restored from the sources of the image, with and without a
// restart, and a repair does not report both success and failure.
func TestRepairDocuments(t *testing.T) {
	for _, restart := range []bool{false, true} {
		r := newRig(t)
		r.hydrate(t)
		if _, err := r.client.Pin(t.Context(), wire.PinRequest{Name: testRef}); err != nil {
			t.Fatal(err)
		}
		documents := []digest.Digest{r.image.Manifest, r.image.Config, r.image.Table}
		for _, d := range documents {
			if err := os.WriteFile(filepath.Join(r.store.ObjectsDir(), store.ObjectName(d)), []byte("damage"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if restart {
			if err := r.store.Close(); err != nil {
				t.Fatal(err)
			}
			r.store = storetest.Open(t, r.store.Dir(), store.Options{})
			r.handler.Store, r.handler.Care.Store = r.store, r.store
		}
		res, err := r.client.Verify(t.Context(), wire.VerifyRequest{Repair: true}, func(wire.VerifyEvent) {})
		if err != nil || res.Left != 0 || len(res.Bad) != len(documents) {
			t.Errorf("restart %v: repaired: %+v, %v", restart, res, err)
		}
		if diff := cmp.Diff(res.Repaired, []string{testRef}); diff != "" {
			t.Errorf("restart %v: repaired (got, want):\n%s", restart, diff)
		}
		res, err = r.client.Verify(t.Context(), wire.VerifyRequest{}, func(wire.VerifyEvent) {})
		if err != nil || len(res.Bad) != 0 {
			t.Errorf("restart %v: after it: %+v, %v", restart, res, err)
		}
		if _, err := r.store.Table(r.image.Table); err != nil {
			t.Errorf("restart %v: %v", restart, err)
		}
	}
}

// A list without entries is [] and not null.
func TestEmptyLists(t *testing.T) {
	s := storetest.Open(t, t.TempDir(), store.Options{})
	h := &admin.Handler{Store: s, Jobs: &fakeJobs{status: new(wire.Status)}, Node: &fakeNode{}, Metrics: http.NotFoundHandler()}
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h.Routes()}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close(); <-done })
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	for _, p := range []string{"/v1/images", "/v1/pins"} {
		res, err := client.Get("http://ballastd" + p)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || strings.TrimSpace(string(body)) != "[]" {
			t.Errorf("%s: got %q, %v, want []", p, body, err)
		}
	}
}

// scrub scrubs once. Neither the scrub nor a repair may fail.
func (r *rig) scrub(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r.care.verified = func(name string, err error) {
		if err != nil {
			t.Errorf("%q: %v", name, err)
		}
		if name == "" { // the scrub
			stop()
		}
	}
	if err := r.handler.Care.Scrub(ctx, time.Nanosecond, 1<<40); err != nil {
		t.Error(err)
	}
}

// TestScrubRepairsWhatIsDamaged: of an image without a pin too, and nothing of another one that lacks files.
func TestScrubRepairsWhatIsDamaged(t *testing.T) {
	r := newRig(t)
	r.hydrate(t)
	other := storetest.NewBuilder("other").Raw("w", storetest.Random(2, 100), 0o644).Put(t, r.store)
	if err := r.store.AddRef("pin/other", other, time.Time{}); err != nil {
		t.Fatal(err)
	}
	object := filepath.Join(r.store.ObjectsDir(), store.ObjectName(digest.FromBytes(r.weights)))
	if err := os.Truncate(object, 1); err != nil {
		t.Fatal(err)
	}
	var asked []digest.Digest
	r.care.sources = func(table digest.Digest) ([]transfer.Source, error) {
		asked = append(asked, table)
		return storetest.From(r.fetcher), nil
	}
	r.scrub(t)
	if d := cmp.Diff([]digest.Digest{r.image.Table}, asked); d != "" {
		t.Errorf("downloaded tables (-want +got):\n%s", d)
	}
	if got, err := os.ReadFile(object); err != nil || !bytes.Equal(got, r.weights) {
		t.Errorf("the file is wrong: %v", err)
	}
}

// TestScrubDownloadsNoEvicted restores the damaged manifest of an image, and does not download its files, which are
// not there.
func TestScrubDownloadsNoEvicted(t *testing.T) {
	r := newRig(t)
	manifest := filepath.Join(r.store.ObjectsDir(), store.ObjectName(r.image.Manifest))
	want, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(manifest, 1); err != nil {
		t.Fatal(err)
	}
	r.care.sources = func(digest.Digest) ([]transfer.Source, error) {
		t.Error("files of an evicted model are downloaded")
		return storetest.From(r.fetcher), nil
	}
	r.scrub(t)
	if got, err := os.ReadFile(manifest); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the manifest is %q, %v", got, err)
	}
}

// TestHeadersOfOthers: the description of an image has nothing from private files of others that its table names.
func TestHeadersOfOthers(t *testing.T) {
	r := newRig(t)
	weights := converttest.Safetensors(converttest.SmallSafetensors(), nil)
	table := storetest.NewBuilder("m").Raw("model.safetensors", weights, 0o644).Put(t, r.store)
	mine := storetest.FromRepository("r.example/private", storetest.Private{Fetcher: storetest.NewFetcher(weights)})
	if err := r.store.Hydrate(t.Context(), table, store.HydrateOptions{Sources: mine}); err != nil {
		t.Fatal(err)
	}
	for ref, told := range map[string]bool{"r.example/private:1": true, "r.example/thief:1": false} {
		im := r.put(t, ref, table)
		d, err := r.client.Image(t.Context(), im.Manifest.String())
		if err != nil || d.Description == nil {
			t.Fatalf("%s: %+v, %v", ref, d, err)
		}
		if from := d.Description.FromHeaders; (len(from) > 0) != told {
			t.Errorf("%s: %q is known from headers", ref, from)
		}
	}
}

// heldBy is what mounts of the host and containerd hold.
type heldBy struct {
	admin.Mounts
	table   digest.Digest
	dirs    []string
	holders []wire.Holder
	err     error
}

func (h *heldBy) List(context.Context) (all []wire.Mount, err error) {
	for _, dir := range h.dirs {
		all = append(all, wire.Mount{Dir: dir, Table: h.table})
	}
	return all, nil
}

func (h *heldBy) Holders(context.Context, digest.Digest) ([]wire.Holder, error) {
	return h.holders, h.err
}

// TestRemoveNowInUse: a removal with files removes nothing of a model in use, and names what uses it. Pins, downloads without
// a client and verifications are no use.
func TestRemoveNowInUse(t *testing.T) {
	r := newRig(t)
	r.hydrate(t)
	if _, err := r.client.Pin(t.Context(), wire.PinRequest{Name: testRef}); err != nil {
		t.Fatal(err)
	}
	held := &heldBy{table: r.image.Table}
	r.handler.Mounts, r.handler.Holders = held, held
	for name, tt := range map[string]struct {
		set  func()
		want string
	}{
		"mount": {func() { held.dirs = []string{"/mnt/m"} }, "mount /mnt/m, ends with: ballast unmount /mnt/m"},
		"pod": {func() {
			held.holders = []wire.Holder{{Kind: wire.HoldContainer, Name: "c1", Namespace: "k8s.io", End: "kubectl -n a delete pod b"}}
		}, "container c1 in containerd's namespace k8s.io, ends with: kubectl -n a delete pod b"},
		"download": {func() {
			r.status.Jobs = []wire.Job{{Kind: wire.KindPrefetch, Ref: testRef, Table: r.image.Table, Waiting: 1}}
		}, "download prefetch " + testRef},
		"unknown": {func() { held.err = errdefs.ErrUnavailable }, "what of containerd uses it is unknown"},
	} {
		tt.set()
		for _, remove := range []func(context.Context, string, bool) (wire.Removed, error){r.client.RemoveImage, r.client.Removal} {
			_, err := remove(t.Context(), testRef, true)
			if err == nil || !strings.Contains(err.Error(), tt.want) || errdefs.IsFailedPrecondition(err) == (name == "unknown") {
				t.Errorf("%s: got %v, want %q", name, err, tt.want)
			}
		}
		held.dirs, held.holders, held.err, r.status.Jobs = nil, nil, nil, nil
	}
	if got := r.state(t, r.image.Manifest); got.State != wire.StateComplete || len(got.Pins) != 1 {
		t.Errorf("after refusals: %+v", got)
	}
	r.status.Jobs = []wire.Job{{Kind: wire.KindAbandoned, Table: r.image.Table}, {Kind: wire.KindVerify, Table: r.image.Table, Waiting: 1}}
	gone, err := r.client.RemoveImage(t.Context(), testRef, true)
	if err != nil || gone.Bytes < int64(len(r.weights)) || gone.Left != 0 || len(gone.Names) != 1 || gone.Names[0] != testRef {
		t.Errorf("removed %+v, %v", gone, err)
	}
	if u, err := r.client.Usage(t.Context()); err != nil || u.Unique != 0 {
		t.Errorf("after the removal: %+v, %v", u, err)
	}
}

// TestStateByName: a model is not complete, and not given to CRI-O, by a name whose repository has given nothing.
func TestStateByName(t *testing.T) {
	r := newRig(t)
	own := r.put(t, "good.example/team/secret:v1", storetest.NewBuilder("own").Raw("w", r.weights, 0o644).Put(t, r.store))
	claim := r.put(t, "evil.example/m:v1", storetest.NewBuilder("claim").Raw("w", r.weights, 0o644).Put(t, r.store))
	from := storetest.FromRepository("good.example/team/secret", storetest.Private{Fetcher: r.fetcher})
	if err := r.store.Hydrate(t.Context(), own.Table, store.HydrateOptions{Sources: from}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]wire.ImageState{
		own.Refs[0]: wire.StateComplete, claim.Refs[0]: wire.StatePartial,
	} {
		if d, err := r.client.Image(t.Context(), name); err != nil || d.State != want {
			t.Errorf("%s: state %q, %v, want %q", name, d.State, err, want)
		}
	}
}

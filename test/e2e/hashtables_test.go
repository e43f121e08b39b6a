package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
)

// TestHashTables: the node that downloads an unconverted model first writes tables of hash states. Another one starts a
// container of the model at once, and reads its end before the rest is there; one that does not trust the key of the
// tables waits for the whole model. When the key is taken away, what is not complete waits for its digest.
func TestHashTables(t *testing.T) {
	registry := node.StartRegistry(t, t.TempDir())
	dir := t.TempDir()
	private, public := converttest.KeyPair(t, dir, "tables")
	_, others := converttest.KeyPair(t, dir, "others")
	tables := registry.Host + "/team/tables"
	config := func(key, file string) string { return fmt.Sprintf("[lazy]\ntables = %q\n%s = %s\n", tables, key, file) }
	trusting := func(file string) string { return config("table_keys", fmt.Sprintf("[%q]", file)) }
	big := weights(140, 48<<20+5)
	model := converttest.ModelPackRaw(converttest.Files(big))
	blob := digest.FromBytes(big)
	tag := "sha256-" + blob.Encoded() + ".states"

	first := node.StartNode(t, node.Options{Registry: registry, Config: config("table_sign", fmt.Sprintf("%q", private))})
	ref := push(t, first, model)
	mustPull(t, first, "ballast", ref)
	waitFor(t, "the table", func() error {
		for _, r := range registry.Wire.Requests() {
			if r.Method == http.MethodPut && r.Path == "/v2/team/tables/manifests/"+tag {
				return nil
			}
		}
		return fmt.Errorf("it is not written")
	})
	out := ballast(t, first, "tables", "push", ref)
	if want := fmt.Sprintf("model.gguf  was there  %s:%s\n", tables, tag); out != want {
		t.Errorf("tables push: %q, want %q", out, want)
	}
	again, _ := converttest.KeyPair(t, dir, "again")
	out = ballast(t, first, "tables", "push", ref, "--to", registry.Host+"/other/tables", "--sign", again)
	if !strings.Contains(out, "  written  ") {
		t.Errorf("tables push to another repository: %q", out)
	}
	first.Ballastd.Stop(t)

	second := node.StartNode(t, node.Options{Registry: registry, Config: trusting(public)})
	registry.Wire.Reset()
	slow(second)
	pause(t, second)
	mustPull(t, second, "ballast", ref)
	open := func() *os.File {
		t.Helper()
		f, err := os.Open(filepath.Join(rootOf(t, second, ref), "model.gguf"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	f := open()
	tail := make([]byte, 1000)
	if _, err := f.ReadAt(tail, int64(len(big)-len(tail))); err != nil || !bytes.Equal(tail, big[len(big)-len(tail):]) {
		t.Fatalf("end of the file: %v", err)
	}
	if complete(second, big) {
		t.Error("the file was complete before its end was read")
	}
	for _, args := range [][]string{{"why", ref}, {"ls"}} {
		if out, want := ballast(t, second, args...), "by tables of hash states of "+tables+" (key "; !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("%v: %q, want %q", args, out, want)
		}
	}
	if sent := registry.Wire.BlobBytes()[blob]; sent > 12<<20 {
		t.Errorf("%d bytes of the file were sent for its end", sent)
	}
	rest := func(f *os.File) {
		t.Helper()
		resume(t, second)
		h := sha256.New()
		if _, err := io.Copy(h, f); err != nil || hex.EncodeToString(h.Sum(nil)) != blob.Encoded() {
			t.Errorf("whole file: %v, or other bytes", err)
		}
		waitFor(t, "the model to be complete", func() error {
			if !complete(second, big) {
				return fmt.Errorf("it is not")
			}
			return nil
		})
	}
	// Without the key, what was read is dropped, and the model is read when it is complete.
	second.Ballastd.Stop(t)
	if err := os.WriteFile(filepath.Join(second.Dir, "conf.d/extra.toml"), []byte("version = 1\n"+trusting(others)), 0o600); err != nil {
		t.Fatal(err)
	}
	second.StartBallastd(t)
	if out, want := ballast(t, second, "why", ref), "had no table of hash states in "+tables; !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
		t.Errorf("why, without the key: %q, want %q", out, want)
	}
	rest(open())
	if sent := registry.Wire.BlobBytes()[blob]; sent < int64(len(big))+1<<20 {
		t.Errorf("%d bytes were sent in all, want what was read and then the whole file of %d again", sent, len(big))
	}

	third := node.StartNode(t, node.Options{Registry: registry, Config: trusting(others)})
	mustPull(t, third, "ballast", ref)
	if !complete(third, big) {
		t.Error("a node that does not trust the key of the table shows the model before it is complete")
	}
	if log, err := os.ReadFile(third.Ballastd.Log); err != nil || !strings.Contains(string(log), "the table of hash states of a blob is not used") {
		t.Errorf("it does not say why: %v", err)
	}
}

package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/signature/dsse"
	"github.com/ballast-dev/ballast/convert/signature/oms"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
)

// TestSignatures enforces signatures: models without a signature, or signed with another key, are
// refused with the reason; signed models can be pulled in every form, and mounted without a network.
func TestSignatures(t *testing.T) {
	dir := t.TempDir()
	team, public := converttest.KeyPair(t, dir, "team")
	stranger, _ := converttest.KeyPair(t, dir, "stranger")
	n := node.StartNode(t, node.Options{Config: `
[[verify.rule]]
match = "*/team/*"
mode = "enforce"
any = [{type = "oms", key = "` + public + `"}, {type = "cosign", key = "` + public + `"}]
`})
	b := converttest.ModelPackRaw(converttest.Files(weights(77, 5<<20)))
	free := push(t, n, b)
	other := converttest.ModelPackRaw(converttest.Files(weights(78, 5<<20)))
	nobodys := n.Registry.Ref("nobody/model", "1")
	n.Registry.Push(t, "nobody/model", "1", artifact(other))
	convert := func(to, as string, key ...string) string {
		t.Helper()
		from, ref := nobodys, n.Registry.Ref("team/"+to, "1")
		if len(key) > 0 && key[0] == team {
			from = free
		}
		args := []string{"convert", from, ref, "--as", as}
		if len(key) > 0 {
			args = append(args, "--sign", key[0])
		}
		if out := n.Ballast(args...); out.Err != nil {
			t.Fatalf("ballast %v: %v\n%s", args, out.Err, out.Output())
		}
		return ref
	}
	cri := n.CRI(t)
	refused := map[string]string{
		"unsigned": convert("unsigned", "modelpack"), "unsigned, converted ahead": convert("ahead", "ballast"), "signed by a stranger": convert("stranger", "modelpack", stranger),
	}
	for name, ref := range refused {
		out := n.Pull("ballast", ref)
		wantError(t, out, "refused by [[verify.rule]]", "*/team/*", strings.TrimSuffix(ref, ":1"))
		wantError(t, n.Pull("ballast", ref, "--local"), "refused by [[verify.rule]]")
		fetch := n.Ballast("prefetch", ref)
		wantError(t, fetch, "refused by [[verify.rule]]")
		if _, err := cri.Pull(ref, ""); err == nil || !strings.Contains(err.Error(), "refused by [[verify.rule]]") {
			t.Errorf("%s: a pull of the kubelet: %v", name, err)
		}
		look := n.Ballast("verify", "--signatures", ref)
		wantError(t, look, "refused")
		for what, out := range map[string]node.Result{"prefetch": fetch, "verify": look} {
			var code *exec.ExitError
			if !errors.As(out.Err, &code) || code.ExitCode() != 11 {
				t.Errorf("%s %s: %v, want exit code 11", what, name, out.Err)
			}
		}
	}
	if !strings.Contains(n.Metrics(), `ballast_signature_checks_total{mode="enforce",result="refused"}`) {
		t.Error("no metric counts what was refused")
	}
	var signed []string
	for _, as := range []string{"modelpack", "ballast"} {
		ref := convert("signed-"+as, as, team)
		mustPull(t, n, "ballast", ref)
		wantFiles(t, n, ref, states(b))
		if out := n.Ballast("inspect", ref); !strings.Contains(out.Stdout, "Signed:") || !strings.Contains(out.Stdout, "team.pub") {
			t.Errorf("inspect does not say who signed %s:\n%s", ref, out.Output())
		}
		if out := n.Ballast("verify", "--signatures", ref); out.Err != nil || !strings.HasPrefix(out.Stdout, "accepted") {
			t.Errorf("verify --signatures %s: %v\n%s", ref, out.Err, out.Output())
		}
		signed = append(signed, ref)
	}
	mustPull(t, n, "ballast", free) // no rule applies

	t.Run("changed", func(t *testing.T) {
		n.Registry.Push(t, "team/signed-modelpack", "1", artifact(other))
		wantError(t, n.Pull("ballast", signed[0]), "refused by [[verify.rule]]")
	})
	t.Run("past the facade", func(t *testing.T) { testPastFacade(t, n, refused["unsigned, converted ahead"]) })
	t.Run("tag and digest", func(t *testing.T) { testTagAndDigest(t, n, refused["unsigned, converted ahead"]) })
	t.Run("offline", func(t *testing.T) { testOffline(t, n, signed[1], b) })
}

// testPastFacade pulls a preconverted image without the facade: it is not shown.
func testPastFacade(t *testing.T, n *node.Node, ref string) {
	n.Direct(t, n.Registry.Host, n.Registry.Host)
	wantError(t, n.Pull("ballast", ref), "refused by [[verify.rule]]")
	// In another namespace, because what the previous pull left is collected at any time.
	wantError(t, n.Ctr("--namespace", "past", "images", "pull", "--snapshotter", "ballast", "--hosts-dir", n.HostsDir(), "--local", ref), "refused by [[verify.rule]]")
	n.Collect() // a pull shares blobs of other namespaces, and can lose one that is collected meanwhile
	n.Upstream(t, n.Registry.Host, n.Registry.Host)
}

// testTagAndDigest pulls by a tag and a digest, which counts as a digest: an ordinary image passes, and a
// model is checked before it is shown.
func testTagAndDigest(t *testing.T, n *node.Node, model string) {
	image := n.Registry.Ref("team/image", "1")
	d := n.Registry.Push(t, "team/image", "1", node.Busybox(t))
	wantError(t, n.Pull("ballast", image), "refused by [[verify.rule]]")
	mustPull(t, n, "ballast", image+"@"+d.String())
	p := fetched(t, n, "/v2/team/ahead/manifests/1")
	wantError(t, n.Pull("ballast", model+"@"+digest.FromBytes(p).String()), "refused by [[verify.rule]]")
}

// testOffline restarts the daemon while the registry fails: an unpacked model can be mounted, and a
// model that containerd unpacks again is shown, because of the recorded verdict.
func testOffline(t *testing.T, n *node.Node, ref string, b *converttest.Built) {
	mustPull(t, n, "ballast", ref, "--local") // so that containerd has all blobs
	n.Ballastd.Stop(t)
	defer n.Registry.Wire.Add(node.Fault{Status: http.StatusServiceUnavailable})()
	n.StartBallastd(t)
	wantFiles(t, n, ref, states(b))

	manifest := imageDigest(t, n, ref)
	for {
		out := n.Ctr("snapshots", "--snapshotter", "ballast", "ls")
		removed := 0
		for line := range strings.Lines(out.Stdout) {
			if key, _, _ := strings.Cut(line, " "); strings.HasPrefix(key, "sha256:") && n.Ctr("snapshots", "--snapshotter", "ballast", "rm", key).Err == nil {
				removed++
			}
		}
		if removed == 0 {
			break
		}
	}
	if out := n.Ctr("snapshots", "--snapshotter", "ballast", "unpack", manifest); out.Err != nil {
		t.Fatalf("unpack again: %v\n%s", out.Err, out.Output())
	}
	wantFiles(t, n, ref, states(b))
}

// holding is a registry that never answers requests for the third part of a large blob. It has its repositories
// twice: free/m is lazy/m.
type holding struct {
	next http.Handler
	held chan struct{} // closed at the first request of lazy/… that gets no answer
	once sync.Once
	end  chan struct{} // closed to answer all
}

// ServeHTTP implements http.Handler.
func (h *holding) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var from int64
	if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from); err == nil && from >= 16<<20 && from < 24<<20 {
		if strings.HasPrefix(r.URL.Path, "/v2/lazy/") {
			h.once.Do(func() { close(h.held) })
		}
		select {
		case <-h.end:
		case <-r.Context().Done():
			return
		}
	}
	r.URL.Path = strings.Replace(r.URL.Path, "/v2/free/", "/v2/lazy/", 1)
	h.next.ServeHTTP(w, r)
}

// omsSignature returns the content of model.sig for a model with files.
func omsSignature(t *testing.T, private string, files map[string]converttest.File) []byte {
	t.Helper()
	var signed []filetable.File
	for name, f := range files {
		signed = append(signed, filetable.File{Path: name, Type: filetable.TypeReg, Digest: digest.FromBytes(f.Data)})
	}
	slices.SortFunc(signed, func(a, b filetable.File) int { return strings.Compare(a.Path, b.Path) })
	statement, err := oms.Statement("model", signed)
	if err != nil {
		t.Fatal(err)
	}
	p, err := os.ReadFile(private)
	if err != nil {
		t.Fatal(err)
	}
	key, err := dsse.ParsePrivateKey(p)
	if err != nil {
		t.Fatal(err)
	}
	sig, err := dsse.Sign(key, statement)
	if err != nil {
		t.Fatal(err)
	}
	return sig
}

// signedFiles makes a model whose files have the digests that a team signed, and chunks of any bytes.
func signedFiles(t *testing.T, n *node.Node, private string, bytes []byte) (ref string, honest *converttest.Built) {
	t.Helper()
	honest = converttest.ModelPackRaw(converttest.Files(weights(79, 24<<20)))
	sig := omsSignature(t, private, honest.Files)
	return lyingModel(t, n, converttest.ModelPackRaw(converttest.Files(bytes)), digest.FromBytes(honest.Files["model.gguf"].Data), filetable.File{
		Path: oms.SignatureFile, Type: filetable.TypeReg, Mode: 0o644, Size: int64(len(sig)), Digest: digest.FromBytes(sig), Source: &filetable.Source{Inline: sig},
	}), honest
}

// TestSignedLie pulls a model with the files that a team signed, and with chunks of other bytes. The
// registry holds back the last chunks, so that no file is ever complete and compared. By a name
// without a rule, the model is read early. By a name with one, no byte can be read, and the right model
// is shown when it is complete.
func TestSignedLie(t *testing.T) {
	private, public := converttest.KeyPair(t, t.TempDir(), "team")
	n := node.StartNode(t, node.Options{Config: "[[verify.rule]]\nmatch = \"*/lazy/*\"\nmode = \"enforce\"\nany = [{type = \"oms\", key = \"" + public + "\"}]\n"})
	lie, _ := signedFiles(t, n, private, weights(80, 24<<20))
	front := &holding{next: n.Registry.Wire, held: make(chan struct{}), end: make(chan struct{})}
	host := node.Serve(t, front)
	n.Upstream(t, host, host)
	ref := strings.Replace(lie, n.Registry.Host, host, 1)
	free := strings.Replace(ref, "/lazy/", "/free/", 1)

	mustPull(t, n, "ballast", free)
	wantError(t, n.Pull("ballast", ref), "in use under another name")
	if out := n.Ctr("images", "rm", "--sync", free); out.Err != nil {
		t.Fatal(out.Output())
	}

	pulled := make(chan node.Result)
	go func() { pulled <- n.Pull("ballast", ref) }()
	select {
	case <-front.held:
	case out := <-pulled:
		t.Fatalf("the pull ends without the last chunks: %v\n%s", out.Err, out.Output())
	}
	if names := imageNames(t, n); slices.Contains(names, ref) {
		t.Errorf("images %v: one can be read that is not signed", names)
	}
	if out := n.Ballast("verify", "--signatures", ref); out.Err != nil || !strings.HasPrefix(out.Stdout, "pending") || !strings.Contains(out.Stdout, "team.pub") {
		t.Errorf("verify --signatures: %v\n%s", out.Err, out.Output())
	}
	wantError(t, n.Ballast("mount", ref, t.TempDir()), "only when it is complete")
	close(front.end)
	wantError(t, <-pulled, "does not have what its table of contents lists")

	_, honest := signedFiles(t, n, private, weights(79, 24<<20))
	mustPull(t, n, "ballast", ref)
	if want := honest.Files["model.gguf"].Data; !complete(n, want) {
		t.Error("a model of which only the files are signed is shown before it is complete")
	}
	if out := n.Ballast("verify", "--signatures", ref); out.Err != nil || !strings.HasPrefix(out.Stdout, "accepted") {
		t.Errorf("verify --signatures: %v\n%s", out.Err, out.Output())
	}
	dir := t.TempDir()
	ballast(t, n, "mount", ref, dir)
	ballast(t, n, "unmount", dir)
}

// TestSignedByAlias pulls an unsigned model by other names of the host in a rule.
func TestSignedByAlias(t *testing.T) {
	_, public := converttest.KeyPair(t, t.TempDir(), "team")
	n := node.StartNode(t, node.Options{Config: "[[verify.rule]]\nmatch = \"registry.ollama.ai/Library/*\"\nmode = \"enforce\"\nany = [{type = \"cosign\", key = \"" + public + "\"}]\n"})
	n.Registry.Push(t, "library/m", "1", artifact(converttest.Ollama(converttest.Files(weights(82, 1<<20)), converttest.OllamaConfigNew)))
	n.Upstream(t, "registry.ollama.ai", n.Registry.Host)
	cri := n.CRI(t)
	for _, host := range []string{"registry.ollama.ai", "ollama.com", "registry.ollama.ai:443", "ollama.com:0443"} {
		n.Upstream(t, host, n.Registry.Host)
		wantError(t, n.Pull("ballast", host+"/library/m:1"), "refused by [[verify.rule]]")
		if _, err := cri.Pull(host+"/library/m:1", ""); err == nil || !strings.Contains(err.Error(), "refused by [[verify.rule]]") {
			t.Errorf("a pod of %s: %v", host, err)
		}
	}
}

// TestSignatureRules checks that the daemon does not start with invalid rules.
func TestSignatureRules(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.toml")
	err := os.WriteFile(config, []byte("version = 1\nroot = \""+filepath.Join(t.TempDir(), "r")+"\"\n[[verify.rule]]\nmatch = \"*\"\nmode = \"enforce\"\nany = [{type = \"oms\", key = \"none.pub\"}]\n"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("../../bin/ballastd", "--config", config).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "none.pub") || !strings.Contains(string(out), "verify.rule 1") {
		t.Errorf("ballastd with a key that is not there: %v\n%s", err, out)
	}
}

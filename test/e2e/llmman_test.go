package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// llmmanResolve runs a program as vLLM's plugin for llmman runs it, and reads its output by the rules of the plugin: the
// last line of stdout that is not blank is JSON.
// https://github.com/llmmanorg/llmman/blob/485d055cc7b8640ca376149004fe3579e132a41c/vllm-plugin/src/vllm_llmman/_llmman_cli.py
//
// It is stricter where other callers of llmman are: Ray has an object with a path that exists, OVMS also reads stderr,
// before stdout, and knows two formats.
func llmmanResolve(t *testing.T, env []string, program ...string) (map[string]any, error) {
	var stdout, stderr bytes.Buffer
	c := exec.CommandContext(t.Context(), program[0], program[1:]...)
	c.Env, c.Dir, c.Stdout, c.Stderr = env, "/", &stdout, &stderr
	if err := c.Run(); err != nil {
		if _, ok := errors.AsType[*exec.ExitError](err); !ok {
			t.Fatal(err)
		}
		if stdout.Len() > 0 {
			t.Errorf("an error has %q on stdout", &stdout)
		}
		return nil, fmt.Errorf("`llmman resolve` failed (%w): %s", err, strings.TrimSpace(stderr.String()))
	}
	var last string
	for line := range strings.Lines(stderr.String() + stdout.String()) {
		if line = strings.TrimSpace(line); line != "" {
			last = line
		}
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(last), &got); err != nil {
		return nil, fmt.Errorf("unparseable output: %q: %w", last, err)
	}
	if _, err := os.Stat(fmt.Sprint(got["path"])); err != nil {
		return nil, err
	}
	if f := got["format"]; f != "safetensors" && f != "gguf" {
		return nil, fmt.Errorf("unsupported format %v", f)
	}
	return got, nil
}

// TestLlmman finds models through a link with the name of llmman, as a user who is not root.
func TestLlmman(t *testing.T) {
	open := t.TempDir() // that the user can enter
	for dir := open; dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	resolve := fmt.Sprintf("[resolve]\ngroup = \"daemon\"\naddress = %q\n", filepath.Join(open, "r", "resolve.sock"))
	n := node.StartNode(t, node.Options{Config: node.AllowLoopback + resolve})
	users := filepath.Join(open, "config.toml") // that of the node is for root
	if err := os.WriteFile(users, []byte("version = 1\n"+resolve), 0o644); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(open, "llmman")
	if err := os.Symlink(node.Binary(t, "ballast"), link); err != nil {
		t.Fatal(err)
	}
	user := []string{"setpriv", "--reuid=65534", "--regid=1", "--clear-groups"}
	ask := func(args ...string) (map[string]any, error) {
		return llmmanResolve(t, []string{"BALLAST_CONFIG=" + users}, append(append(user[:len(user):len(user)], link), args...)...)
	}
	safetensors := converttest.ModelPackRaw([]converttest.File{
		{Path: "config.json", Data: []byte("{}"), Mode: 0o644}, {Path: "model.safetensors", Data: weights(92, 1<<20), Mode: 0o644},
	})
	neither := converttest.ModelPackRaw([]converttest.File{{Path: "model.onnx", Data: weights(93, 1<<10), Mode: 0o644}})
	neither.Name = "neither"
	for _, tt := range []struct {
		model        *converttest.Built
		path, format string
		err          string
	}{
		{converttest.DockerAIGGUF(converttest.Files(weights(91, 1<<20))), "model.gguf", "gguf", ""},
		{safetensors, "", "safetensors", ""},
		{neither, "", "", "no file in GGUF or safetensors"},
	} {
		ref, dir := push(t, n, tt.model), filepath.Join(open, tt.model.Name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := ask("resolve", ref); err == nil || !strings.Contains(err.Error(), "is not mounted on this machine for everybody; root mounts it with") {
			t.Errorf("%s before the mount: %v", ref, err)
		}
		for _, args := range [][]string{{"prefetch", ref}, {"mount", ref, dir}} {
			if out := n.Ballast(args...); out.Err != nil {
				t.Fatalf("ballast %v: %v\n%s", args, out.Err, out.Output())
			}
		}
		defer n.Ballast("unmount", dir)
		got, err := ask("resolve", ref)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) || !strings.Contains(err.Error(), "exit status 8") {
				t.Errorf("%s: %v", ref, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", ref, err)
			continue
		}
		path := filepath.Join(dir, tt.path)
		if got["reference"] != ref || got["path"] != path || got["format"] != tt.format || len(got) != 3 {
			t.Errorf("%s: got %v", ref, got)
		}
		if out, err := exec.CommandContext(t.Context(), user[0], append(user[1:], "find", path, "-type", "f", "-readable")...).Output(); err != nil || len(out) == 0 {
			t.Errorf("the user reads no file of %s: %v", path, err)
		}
		if again, err := ask("resolve", "--no-pull", ref); err != nil || again["path"] != got["path"] {
			t.Errorf("%s with --no-pull: %v, %v", ref, again, err)
		}
		if _, err := ask("rm", ref); err == nil || !strings.Contains(err.Error(), `there is no command "llmman"`) {
			t.Errorf("llmman rm: %v", err)
		}
		if _, err := ask("resolve", ref, "--store", "/nowhere"); err == nil || !strings.Contains(err.Error(), "--store") {
			t.Errorf("the store of llmman: %v", err)
		}
	}
	if out := node.Command(t.Context(), nil, link, "--version"); out.Err != nil || !strings.Contains(out.Stdout, "version") {
		t.Errorf("llmman --version: %v\n%s", out.Err, out.Output())
	}
}

package setup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// What systemctl shows of a containerd with proxies, in its unit and in a file.
const containerdsEnvironment = "Environment=NO_PROXY=old HTTPS_PROXY=http://u:s3cret@proxy.example:3128 LANG=C \"SSL_CERT_DIR=/a b\"\nEnvironmentFiles=/etc/default/containerd (ignore_errors=no)\n"

// proxied is the file of ballastd's environment then.
const proxied = "# Written by \"ballast setup\".\nHTTPS_PROXY=\"http://u:s3cret@proxy.example:3128\"\nNO_PROXY=\"10.0.0.0/8,.local\"\nSSL_CERT_DIR=\"/a b\"\n"

func newProxied(t *testing.T) *root {
	r := newRoot(t, "kubeadm")
	r.write("run/environment", containerdsEnvironment)
	r.write("etc/default/containerd", "# of the operator\nNO_PROXY='10.0.0.0/8,.local'\n")
	return r
}

// TestEnvironmentOfContainerd: ballastd gets the proxies and certificates that containerd has, the plan says so without
// their values, they follow those of containerd, and a removal takes them.
func TestEnvironmentOfContainerd(t *testing.T) {
	r := newProxied(t)
	before := r.files()
	p, err := r.plan(Options{})
	r.ok(err)
	said := ""
	for _, s := range p.Steps {
		said += s.Target + ": " + s.Why + "\n"
	}
	if !strings.Contains(said, environmentFile+": ballastd gets HTTPS_PROXY, NO_PROXY, SSL_CERT_DIR\n") || strings.Contains(said, "s3cret") {
		t.Errorf("the plan: %s", said)
	}
	r.apply(p)
	if got := r.read(environmentFile); got != proxied {
		t.Errorf("got %s", got)
	}
	if info, err := os.Stat(filepath.Join(r.dir, environmentFile)); err != nil || info.Mode() != 0o600 {
		t.Errorf("its mode is %v, %v", info.Mode(), err)
	}
	if again := r.set(Options{}); again != nil {
		t.Errorf("a second run: %q", again)
	}
	r.write("etc/default/containerd", "NO_PROXY=*\n")
	before["etc/default/containerd"] = r.files()["etc/default/containerd"]
	r.set(Options{})
	if got := r.read(environmentFile); !strings.Contains(got, "NO_PROXY=\"*\"\n") {
		t.Errorf("after a change: got %s", got)
	}
	gone, err := NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
	r.ok(err)
	r.apply(gone)
	r.left(before)
}

// TestEnvironmentOfOthers leaves a file of others, and one that others have edited, as it is, and says what it lacks.
func TestEnvironmentOfOthers(t *testing.T) {
	for name, env := range map[string][]string{"of others": nil, "edited": nil, "edited, with a token": {"HF_TOKEN"}} {
		r := newProxied(t)
		if name != "of others" {
			r.set(Options{Env: env, Values: map[string]string{"HF_TOKEN": "x"}})
		}
		const theirs = "https_proxy=http://other.example\nGOMEMLIMIT=1GiB\n"
		r.write(environmentFile, theirs)
		for range 2 {
			p, err := r.plan(Options{Force: true, Env: env})
			r.ok(err)
			notes := strings.Join(p.Notes, "\n")
			if !strings.Contains(notes, "containerd has NO_PROXY, SSL_CERT_DIR, and ballastd has not: add to "+environmentFile) || strings.Contains(notes, "s3cret") {
				t.Errorf("%s: notes %q", name, notes)
			}
			r.apply(p)
		}
		p, err := NewRemoval(t.Context(), Options{Host: r.dir, NoRestart: true})
		r.ok(err)
		r.apply(p)
		if got := r.read(environmentFile); got != theirs {
			t.Errorf("%s: got %s", name, got)
		}
	}
}

// TestEnvironmentOfTheChart: variables that are given are in the file, beside those of containerd, for root alone and
// not in the record. What does not know their values keeps them.
func TestEnvironmentOfTheChart(t *testing.T) {
	r := newProxied(t)
	o := Options{Env: []string{"HF_TOKEN", "NO_PROXY"}, Values: map[string]string{"HF_TOKEN": "hf_\"$x`\\", "NO_PROXY": "mine"}}
	r.set(o)
	got := r.read(environmentFile)
	for _, want := range []string{"HF_TOKEN=\"hf_\\\"\\$x\\`\\\\\"\n", "NO_PROXY=\"mine\"\n", "HTTPS_PROXY=\"http://u:s3cret@"} {
		if !strings.Contains(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if text := r.read(stateFile); strings.Contains(text, "hf_") || strings.Contains(text, "s3cret") {
		t.Errorf("a secret is in the record: %s", text)
	}
	fix, err := NewFix(t.Context(), Options{Host: r.dir, NoRestart: true})
	r.ok(err)
	r.apply(fix)
	if now := r.read(environmentFile); now != got {
		t.Errorf("after a repair: got %s", now)
	}
	r.write("etc/default/containerd", "NO_PROXY=*\nHTTPS_PROXY=http://new.example\n")
	r.set(Options{Env: o.Env}) // as a run without --env, whose names are those of the last
	got = strings.NewReplacer("http://u:s3cret@proxy.example:3128", "http://new.example").Replace(got)
	if now := r.read(environmentFile); now != got {
		t.Errorf("with other proxies of containerd: got %s, want %s", now, got)
	}
	r.write("etc/default/containerd", "NO_PROXY=10.0.0.0/8,.local\n")
	r.set(Options{Values: map[string]string{}})
	if now := r.read(environmentFile); now != proxied {
		t.Errorf("when they are not given any more: got %s", now)
	}
	r.set(Options{NoService: true, RuntimeHandler: "ballast"})
	if hostAt(r.dir).Exists(environmentFile) {
		t.Error("a daemon in a pod has an environment file")
	}
	p, err := r.plan(Options{Env: []string{"HF_TOKEN"}})
	r.ok(err)
	if notes := strings.Join(p.Notes, "\n"); !strings.Contains(notes, "the value of HF_TOKEN is lost") {
		t.Errorf("without the file: notes %q", notes)
	}
	_, err = r.plan(Options{Env: []string{"X"}, Values: map[string]string{"X": "a\nb"}})
	wantError(t, err, errdefs.IsInvalidArgument, `"X"`)
}

package remote_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

const someDigest = "sha256:b50d6c999e592ae4f79acae23b4feaefbdfceaa7cd366df2610e3072c052a160"

func TestParseRef(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in, want string
		host     string
	}{
		{"gemma", "docker.io/library/gemma:latest", "docker.io"},
		{"ai/smollm2:360M", "docker.io/ai/smollm2:360M", "docker.io"},
		{"index.docker.io/ai/smollm2", "docker.io/ai/smollm2:latest", "docker.io"},
		{"registry-1.docker.io/ai/smollm2", "docker.io/ai/smollm2:latest", "docker.io"},
		{"Ollama.com/library/gemma:2b", "registry.ollama.ai/library/gemma:2b", "registry.ollama.ai"},
		{"huggingface.co/Org/Model:main", "hf.co/Org/Model:main", "hf.co"},
		{"registry.ollama.ai/library/gemma:2b", "registry.ollama.ai/library/gemma:2b", "registry.ollama.ai"},
		{"127.0.0.1:5000/a/b/c:v1@" + someDigest, "127.0.0.1:5000/a/b/c:v1@" + someDigest, "127.0.0.1:5000"},
		{"[::1]:5000/a@" + someDigest, "[::1]:5000/a@" + someDigest, "[::1]:5000"},
		{"hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M", "hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M", "hf.co"},
		{"hf.co/Org/Model", "hf.co/Org/Model:latest", "hf.co"},
		{"carton+https://h.example/a/b.carton?sig=1", "carton+https://h.example/a/b.carton?sig=1", ""},
		{"carton+HTTP://h.example:8080/A", "carton+http://h.example:8080/A", ""},
		{"carton+https://H.Example:443/A", "carton+https://h.example/A", ""},
		{"carton+http://h.example.:080/A", "carton+http://h.example/A", ""},
		{"carton+http://[0::1]:443/A", "carton+http://[::1]:443/A", ""},
		{"Registry.Example:0443/a", "registry.example/a:latest", "registry.example"},
		{"[0:0:0:0:0:0:0:1]:05000/a", "[::1]:5000/a:latest", "[::1]:5000"},
		{"docker.io:443/ai/smollm2", "docker.io/ai/smollm2:latest", "docker.io"},
	} {
		got, err := remote.ParseRef(tt.in)
		if err != nil {
			t.Errorf("ParseRef(%q): %v", tt.in, err)
			continue
		}
		if diff := cmp.Diff(got.String(), tt.want); diff != "" {
			t.Errorf("ParseRef(%q) (-got +want):\n%s", tt.in, diff)
		}
		if got.Host != tt.host {
			t.Errorf("ParseRef(%q).Host = %q, want %q", tt.in, got.Host, tt.host)
		}
	}
}

// TestNameHidesQuery checks that the name of a URL does not contain its query, and that a name is its own
// name.
func TestNameHidesQuery(t *testing.T) {
	ref, err := remote.ParseRef("carton+https://h.example/a/b.carton?sig=s3cr3t-value")
	if err != nil {
		t.Fatal(err)
	}
	name := ref.Name()
	again, err := remote.ParseRef(name)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(name, "s3cr3t") || again.Name() != name || again.String() != name || !again.Hidden() || ref.Hidden() {
		t.Errorf("name %q, again %q, hidden %t and %t", name, again.Name(), ref.Hidden(), again.Hidden())
	}
}

var badRefs = []string{
	"", "/", "a/../b", "host.example/../etc:x", "host.example/a b", "host.example/a:", "host.example//a",
	"host.example/a@sha256:../../x", "host.example/a@sha256:ABC", "host.example/A/../b:x",
	"host.example/a@sha512:" + strings.Repeat("a", 128), "host.example/A@md5:" + strings.Repeat("a", 32),
	"Upper/case", "host.example/" + strings.Repeat("a", 300), "user:pw@host.example/a", "https://host.example/a",
	"carton+", "carton+x", "carton+file:///etc/passwd", "carton+https://", "carton+https:///x", "carton+https://u:p@h.example/x",
	"carton+https://h.example/x#y", "carton+ftp://h.example/x", "carton+https://h.example/" + strings.Repeat("a", 3000),
	"carton+https://h.example/" + strings.Repeat(" ", 1000), // three times as long when it is escaped
	"host.example:0/a", "host.example:000/a", "[::1]:0/a", "host.example:70000/a", "host.example:/a", "host.example../a",
	"127.1:5000/a", "0x7f.0.0.1/a", "127.0.0.0x1:5000/a", "127.000.000.001:5000/a", "2130706433:5000/a", "[::1/a", "[fe80::1%25eth0]:5000/a",
	"host.example/a:" + strings.Repeat("t", 200), "host.example/A?x", "host.example/A#x", "_default/a/../x",
}

func TestParseRefInvalid(t *testing.T) {
	t.Parallel()
	for _, in := range badRefs {
		got, err := remote.ParseRef(in)
		if err == nil {
			t.Errorf("ParseRef(%.60q) = %s, want an error", in, got)
			continue
		}
		if !errdefs.IsInvalidArgument(err) && !errdefs.IsNotImplemented(err) {
			t.Errorf("ParseRef(%.60q): category of %v", in, err)
		}
	}
}

func TestNewRefInvalid(t *testing.T) {
	t.Parallel()
	for _, tt := range [][3]string{
		{"..", "a", "x"}, {"a/b", "c", "x"}, {"host.example", "../x", "t"}, {"host.example", "a", "../t"},
		{"host.example", "a", "sha256:x"}, {"host.example?", "a", "t"}, {"host.example@evil.example", "a", "t"},
		{"host.example", "a", ""}, {"", "a", "t"}, {"_default", "a", "t"}, {"host.example:x", "a", "t"},
	} {
		if got, err := remote.NewRef(tt[0], tt[1], tt[2]); !errdefs.IsInvalidArgument(err) {
			t.Errorf("NewRef(%q) = %v, %v, want ErrInvalidArgument", tt, got, err)
		}
	}
}

func FuzzParseRef(f *testing.F) {
	for _, s := range badRefs {
		f.Add(s)
	}
	f.Add("registry.ollama.ai/library/gemma:2b")
	f.Add("hf.co/Org/Model:Q4@" + someDigest)
	f.Add("carton+http://h.example/a b?signature=x")
	f.Fuzz(func(t *testing.T, s string) {
		ref, err := remote.ParseRef(s)
		if err != nil {
			return
		}
		again, err := remote.ParseRef(ref.String())
		if err != nil || again != ref {
			t.Errorf("ParseRef(%q) = %v, which parses to %v, %v", s, ref, again, err)
		}
		if ref.URL != "" {
			u, err := url.Parse(ref.URL)
			if err != nil || len(ref.URL) > 2048 || u.Hostname() == "" || u.User != nil || u.Fragment != "" || ref != (remote.Ref{URL: ref.URL}) {
				t.Errorf("ParseRef(%q) = %+v, %v", s, ref, err)
			}
			return
		}
		for _, bad := range []string{"..", "//", "@@", "?", "#", " ", "\\"} {
			if strings.Contains(ref.Name(), bad) {
				t.Errorf("ParseRef(%q).Name() = %q", s, ref.Name())
			}
		}
		if ref.Digest != "" && ref.Digest.Algorithm() != digest.SHA256 {
			t.Errorf("ParseRef(%q).Digest = %q", s, ref.Digest)
		}
	})
}

package config

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestDefaultGolden compares what "ballastd config default" prints with a golden file, and reads it
// back as the default: nothing is lost between writing and reading.
func TestDefaultGolden(t *testing.T) {
	var b bytes.Buffer
	if err := Default().Write(&b); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "default.toml")
	if *update {
		if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b.String(), string(want)); diff != "" {
		t.Errorf("default configuration (got, want):\n%s", diff)
	}
	got := new(Config)
	if err := decode(golden, want, got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, Default()); diff != "" {
		t.Errorf("read back (got, want):\n%s", diff)
	}
}

func TestLoad(t *testing.T) {
	clearEnvironment(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "config.toml"), `
version = 1
root = "/data/ballast/"
[fetch]
connections = 4
reserve = "2GB"
[upstream]
ollama_hosts = ["a.example", "b.example"]
`)
	write(t, filepath.Join(dir, "conf.d", "20-b.toml"), "version = 1\n[fetch]\nconnections = 16\n")
	write(t, filepath.Join(dir, "conf.d", "10-a.toml"), "version = 1\n[fetch]\nconnections = 2\nlinger = \"1h\"\n[upstream]\nollama_hosts = [\"c.example\"]\n")
	write(t, filepath.Join(dir, "conf.d", "off.toml.bak"), "nonsense")

	got, files, err := LoadFiles(filepath.Join(dir, "config.toml"))
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.From = filepath.Join(dir, "config.toml")
	want.Root = "/data/ballast"
	want.Fetch = Fetch{Connections: 16, Reserve: 2e9, Linger: Duration{time.Hour}}
	want.Upstream.OllamaHosts = []string{"c.example"}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("configuration (got, want):\n%s", diff)
	}
	if len(files) != 3 {
		t.Errorf("files read: %v", files)
	}
}

func TestLoadErrors(t *testing.T) {
	clearEnvironment(t)
	for _, tt := range []struct{ name, file, want string }{
		{"unknown key", "version = 1\n\n[fetch]\nconections = 3\n", `config.toml:4: unknown key "fetch.conections"`},
		{"layout for nothing", "version = 1\n[[layout]]\nprefix = \"models\"\n", "layout 1: match is empty"},
		{"layout for a URL", "version = 1\n[[layout]]\nmatch = \"oci://ghcr.io/team/m\"\nprefix = \"models\"\n", "stands for nothing"},
		{"layout outside", "version = 1\n[[layout]]\nmatch = \"*\"\nprefix = \"../models\"\n", "leaves the model"},
		{"two unknown keys", "version = 1\nfoo = 1\nbar = 2\n", `config.toml:3: unknown key "bar"`},
		{"unknown table", "version = 1\n[gc2]\nhigh = \"1%\"\n", `unknown key "gc2`},
		{"no version", "root = \"/x\"\n", `has no "version = 1" line`},
		{"later version", "version = 2\n", "version is 2"},
		{"syntax", "version = 1\nroot = \n", "config.toml:2: "},
		{"type", "version = 1\n[fetch]\nconnections = \"many\"\n", "config.toml:3: fetch.connections is a number, such as 8"},
		{"size", "version = 1\n[fetch]\nreserve = \"1 GiBi\"\n", "not a number with a unit"},
		{"duration", "version = 1\n[gc]\ninterval = \"5\"\n", `duration "5" has no unit: 5s?`},
		{"duration as number", "version = 1\n[gc]\ninterval = 5\n", `config.toml:3: gc.interval: duration "5" has no unit: 5s?`},
		{"list as text", "version = 1\n[upstream]\nallow_hosts = \"x\"\n", "config.toml:3: upstream.allow_hosts is a list in brackets"},
		{"text as number", "version = 1\nroot = 5\n", "config.toml:2: root is a text in quotes, such as '/var/lib/ballast'"},
		{"table as number", "version = 1\nfetch = 5\n", "config.toml:2: fetch is a table"},
		{"type in a list of tables", "version = 1\n[[verify.rule]]\nmatch = 5\n", "config.toml:3: verify.rule.match is a text in quotes"},
		{"size without unit", "version = 1\n[fetch]\nreserve = 5.5 # GB\n", `config.toml:3: fetch.reserve: size "5.5" has no unit: 5.5GB?`},
		{"small size without unit", "version = 1\n[fetch]\nreserve = \"5\"\n", `config.toml:3: fetch.reserve: size "5" has no unit: 5GB?`},
		{"duration of words", "version = 1\n[gc]\ninterval = \"soon\"\n", "not a number with a unit such as 30s"},
		{"network", "version = 1\n[upstream]\nallow_hosts = [\"10.0.0.0/33\"]\n", `upstream.allow_hosts: "10.0.0.0/33" is not a network`},
		{"address", "version = 1\n[upstream]\nallow_hosts = [\"10.0.0.300\"]\n", `"10.0.0.300" is not a host`},
		{"URL", "version = 1\n[upstream]\nallow_hosts = [\"http://x\"]\n", `"http://x" is not a host`},
		{"not a host of references", "version = 1\n[upstream]\nshare_credentials = [\"https://registry.example\"]\n", `upstream.share_credentials: "https://registry.example" is not a host`},
		{"closed without file", "version = 1\n[[facade.closed]]\ndigest = \"sha256:" + strings.Repeat("a", 64) + "\"\n", `facade.closed 1: file: "" is not an absolute path`},
		{"closed by another file", "version = 1\n[[facade.closed]]\nfile = \"/etc/shadow\"\n", `facade.closed 1: file: "/etc/shadow" is not the path of a hosts.toml`},
		{"closed elsewhere", "version = 1\n[[facade.closed]]\nfile = \"/etc/../a/hosts.toml\"\n", `is not the path of a hosts.toml`},
		{"closed far away", "version = 1\n[[facade.closed]]\nfile = \"/" + strings.Repeat("x/", 2048) + "hosts.toml\"\n", "more than 4096"},
		{"closed without digest", "version = 1\n[[facade.closed]]\nfile = \"/a/hosts.toml\"\n", `facade.closed 1: digest: "" is not "sha256:" and a checksum`},
		{"closed with a long digest", "version = 1\n[[facade.closed]]\nfile = \"/a/hosts.toml\"\ndigest = \"sha512:" + strings.Repeat("a", 128) + "\"\n", `is not "sha256:" and a checksum`},
		{"closed too often", "version = 1\n" + strings.Repeat("[[facade.closed]]\n", 1001), "1001 tables are more than 1000"},
		{"share", "version = 1\n[gc]\nhigh = \"120%\"\n", "not in the range 1%"},
		{"share as number", "version = 1\n[gc]\nhigh = 500\n", "gc.high: 500% is not in the range 1%"},
		{"scrub without end", "version = 1\n[scrub]\ninterval = \"-1h\"\n", "scrub.interval: is negative"},
		{"scrub that stands still", "version = 1\n[scrub]\nrate = 0\n", `scrub.rate: 0 is less than 64KiB; scrub.interval = "0" turns it off`},
		{"low above high", "version = 1\n[gc]\nlow = \"90%\"\n", "gc.low: 90% is above gc.high, 85%"},
		{"keys without tables", "version = 1\n[lazy]\ntable_keys = [\"/k\"]\n", "lazy.tables: is empty, but table_keys or table_sign is set"},
		{"tables without keys", "version = 1\n[lazy]\ntables = \"r.example/tables\"\n", "lazy.tables: is not used without table_keys"},
		{"tables with a tag", "version = 1\n[lazy]\ntables = \"r.example/tables:v1\"\ntable_sign = \"/k\"\n", "is not a repository, such as registry.example/team/tables"},
		{"tables without a host", "version = 1\n[lazy]\ntables = \"team/tables\"\ntable_sign = \"/k\"\n", "is not a repository, such as registry.example/team/tables"},
		{"tables at a URL", "version = 1\n[lazy]\ntables = \"https://r.example/tables\"\ntable_sign = \"/k\"\n", "lazy.tables: "},
		{"relative key of tables", "version = 1\n[lazy]\ntables = \"r.example/tables\"\ntable_keys = [\"k\"]\n", `"k" is not an absolute path`},
		{"rule without match", "version = 1\n[[verify.rule]]\nmode = \"warn\"\n", "verify.rule 1: match is empty"},
		{"rule of another mode", "version = 1\n[[verify.rule]]\nmatch = \"*\"\nmode = \"on\"\n", "mode \"on\" is not one of off, warn, enforce"},
		{"rule that requires nothing", "version = 1\n[[verify.rule]]\nmatch = \"*\"\nmode = \"enforce\"\n", "requires nothing"},
		{"signer of another type", "version = 1\n[[verify.rule]]\nmatch = \"*\"\nmode = \"enforce\"\nany = [{type = \"gpg\", key = \"k\"}]\n", "any 1: type \"gpg\" is not one of oms, cosign"},
		{"signer without key", "version = 1\n[[verify.rule]]\nmatch = \"*\"\nmode = \"enforce\"\nany = [{type = \"oms\", key = \"k\"}, {type = \"cosign\"}]\n", "any 2: a signer of type cosign needs a key, roots or a trusted_root"},
		{"subject without roots", "version = 1\n[[verify.rule]]\nmatch = \"*\"\nmode = \"enforce\"\nany = [{type = \"oms\", key = \"k\", subject = \"s\"}]\n", "it needs roots"},
		{"issuer without root", "version = 1\n[[verify.rule]]\nmatch = \"*\"\nmode = \"enforce\"\nany = [{type = \"oms\", key = \"k\", issuer = \"i\"}]\n", "it needs trusted_root"},
		{"keyless without issuer", "version = 1\n[[verify.rule]]\nmatch = \"*\"\nmode = \"enforce\"\nany = [{type = \"oms\", trusted_root = \"r\", subject = \"s\"}]\n", "both issuer and subject"},
		{"keyless without subject", "version = 1\n[[verify.rule]]\nmatch = \"*\"\nmode = \"enforce\"\nany = [{type = \"oms\", trusted_root = \"r\", issuer = \"i\"}]\n", "both issuer and subject"},
		{"keyless with a key", "version = 1\n[[verify.rule]]\nmatch = \"*\"\nmode = \"enforce\"\nany = [{type = \"oms\", trusted_root = \"r\", issuer = \"i\", subject = \"s\", key = \"k\"}]\n", "a signer of their own"},
		{"subject without type", "version = 1\n[[verify.rule]]\nmatch = \"*\"\nmode = \"enforce\"\nany = [{type = \"oms\", roots = \"r\", subject = \"release@team.example\"}]\n", "write email:"},
		{"notation", "version = 1\n[[verify.rule]]\nmatch = \"*\"\nmode = \"enforce\"\nany = [{type = \"notation\", key = \"k\"}]\n", "any 1: type \"notation\" is not one of oms, cosign"},
		{"relative root", "version = 1\nroot = \"x\"\n", "root: \"x\" is not an absolute path"},
		{"root with colon", "version = 1\nroot = \"/a:b\"\n", "mount options"},
		{"long socket", "version = 1\naddress = \"/" + strings.Repeat("x", 107) + "\"\n", "has 108 bytes, more than 103"},
		{"one socket", "version = 1\naddress = \"/run/ballast/admin.sock\"\n", "same as address"},
		{"remote facade", "version = 1\n[facade]\nlisten = \"0.0.0.0:5757\"\n", "facade.allow_remote = true"},
		{"plain remote facade", "version = 1\n[facade]\nlisten = \"10.0.0.1:5757\"\nallow_remote = true\ninsecure_plain_http = true\n", "facade.insecure_plain_http"},
		{"facade without port", "version = 1\n[facade]\nlisten = \"127.0.0.1\"\n", "facade.listen"},
		{"level", "version = 1\n[log]\nlevel = \"loud\"\n", "log.level"},
		{"show", "version = 1\n[snapshot]\nshow = \"fuse\"\n", "snapshot.show"},
		{"runner", "version = 1\n[upstream]\nollama_runner = \"cuda\"\n", "upstream.ollama_runner"},
		{"mirror of another kind", "version = 1\n[[mirror]]\nurl = \"http://127.0.0.1:65001\"\nkind = \"kraken\"\n", "mirror 1: mirror http://127.0.0.1:65001: kind \"kraken\""},
		{"mirror without scheme", "version = 1\n[[mirror]]\nurl = \"127.0.0.1:65001\"\nkind = \"dragonfly\"\n", "mirror 1: the url of a mirror"},
		{"mirror that takes no credentials", "version = 1\n[[mirror]]\nurl = \"http://x\"\nkind = \"spegel\"\ntrust = \"credentials\"\n", "spegel takes no credentials"},
		{"mirror that is trusted with something", "version = 1\n[[mirror]]\nurl = \"http://x\"\nkind = \"dragonfly\"\ntrust = \"yes\"\n", "mirror 1: trust: \"yes\" is not none or credentials"},
		{"mirror only of a URL", "version = 1\n[upstream]\nmirror_only = [\"https://x\"]\n", "upstream.mirror_only 1: \"https://x\" is not a host"},
		{"carton without registry", "version = 1\n[[carton]]\nurl = \"https://x.example/{repository}/{tag}\"\n", "carton 1: registry"},
		{"carton with bare registry", "version = 1\n[[carton]]\nregistry = \"cartons\"\nurl = \"https://x.example/{repository}/{tag}\"\n", "carton 1: registry"},
		{"carton over http", "version = 1\n[[carton]]\nregistry = \"c.example\"\nurl = \"http://x.example/{repository}/{tag}\"\n", "allow_http = true"},
		{"carton from a file", "version = 1\n[[carton]]\nregistry = \"c.example\"\nurl = \"file:///{repository}/{tag}\"\n", "carton 1: url"},
		{"carton with user", "version = 1\n[[carton]]\nregistry = \"c.example\"\nurl = \"https://u:p@x.example/{repository}/{tag}\"\n", "without user name"},
		{"carton without tag", "version = 1\n[[carton]]\nregistry = \"c.example\"\nurl = \"https://x.example/{repository}\"\n", "{tag} once each"},
		{"carton with tag twice", "version = 1\n[[carton]]\nregistry = \"c.example\"\nurl = \"https://x.example/{repository}/{tag}/{tag}\"\n", "{tag} once each"},
		{"carton with another placeholder", "version = 1\n[[carton]]\nregistry = \"c.example\"\nurl = \"https://x.example/{repository}/{tag}/{host}\"\n", "and no others"},
		{"carton with open brace", "version = 1\n[[carton]]\nregistry = \"c.example\"\nurl = \"https://x.example/{repository}/{tag}/{\"\n", "and no others"},
		{"carton with tag in the query", "version = 1\n[[carton]]\nregistry = \"c.example\"\nurl = \"https://x.example/{repository}?{tag}\"\n", "in its path"},
		{"carton with tag in the host", "version = 1\n[[carton]]\nregistry = \"c.example\"\nurl = \"https://{tag}.example/{repository}\"\n", "carton 1: url"},
		{"two cartons of one registry", "version = 1\n[[carton]]\nregistry = \"c.example\"\nurl = \"https://x.example/{repository}/{tag}\"\n[[carton]]\nregistry = \"c.example\"\nurl = \"https://y.example/{repository}/{tag}\"\n", "occurs twice"},
		{"connections", "version = 1\n[fetch]\nconnections = 0\n", "not in the range 1 to 256"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config.toml")
			write(t, path, tt.file)
			_, err := Load(path)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error: got %v, want one with %q", err, tt.want)
			}
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("error %v is not ErrInvalidArgument", err)
			}
		})
	}
}

func TestLoadAllowed(t *testing.T) {
	clearEnvironment(t)
	for _, file := range []string{
		"version = 1\n[facade]\nlisten = \"0.0.0.0:5757\"\nallow_remote = true\n",
		"version = 1\n[facade]\nlisten = \"[::1]:5757\"\ninsecure_plain_http = true\n",
		"version = 1\n[[mirror]]\nurl = \"http://127.0.0.1:65001\"\nkind = \"dragonfly\"\ntrust = \"credentials\"\nregistries = [\"*.example\"]\n",
		"version = 1\n[upstream]\nollama_runner = \"mlx\"\n[[carton]]\nregistry = \"c.example\"\nurl = \"https://x.example/{repository}/{tag}.carton\"\n[[carton]]\nregistry = \"d.example:5000\"\nurl = \"http://x.example/{repository}/{tag}\"\nallow_http = true\n",
		"version = 1\n[facade]\nlisten = \"\"\n",
		"version = 1\n[fetch]\nreserve = 1024\nlinger = \"0\"\n",
		"version = 1\n[upstream]\nallow_hosts = [\"10.0.0.0/8\", \"::1\", \"fd00::/8\", \"cdn.example:8443\", \"localhost\", \"[::1]:5000\", \"10.1.2.3:80\", \"1.com\"]\n",
	} {
		path := filepath.Join(t.TempDir(), "config.toml")
		write(t, path, file)
		if _, err := Load(path); err != nil {
			t.Errorf("%q: %v", file, err)
		}
	}
}

func TestMissingFile(t *testing.T) {
	clearEnvironment(t)
	missing := filepath.Join(t.TempDir(), "config.toml")
	if _, err := Load(missing); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("named by flag: got %v, want ErrNotExist", err)
	}
	t.Setenv("BALLAST_CONFIG", missing)
	if _, err := Load(""); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("named by environment: got %v, want ErrNotExist", err)
	}
}

func TestEnvironment(t *testing.T) {
	clearEnvironment(t)
	path := filepath.Join(t.TempDir(), "config.toml")
	write(t, path, "version = 1\n")
	t.Setenv("BALLAST_CONFIG", path)
	t.Setenv("CONTAINERD_ADDRESS", "/tmp/c.sock")
	t.Setenv("DOCKER_CONFIG", "/etc/docker")
	c, err := Load("")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.Containerd.Address, "/tmp/c.sock"; got != want {
		t.Errorf("containerd.address: got %q, want %q", got, want)
	}
	if got, want := c.Upstream.DockerConfig, "/etc/docker/config.json"; got != want {
		t.Errorf("upstream.docker_config: got %q, want %q", got, want)
	}
	if got, want := AdminAddress("", c), "/run/ballast/admin.sock"; got != want {
		t.Errorf("admin address: got %q, want %q", got, want)
	}
	t.Setenv("BALLAST_ADMIN", "/tmp/a.sock")
	if got, want := AdminAddress("", c), "/tmp/a.sock"; got != want {
		t.Errorf("admin address from environment: got %q, want %q", got, want)
	}
	if got, want := AdminAddress("/tmp/f.sock", c), "/tmp/f.sock"; got != want {
		t.Errorf("admin address from flag: got %q, want %q", got, want)
	}
	write(t, path, "version = 1\n[containerd]\naddress = \"/tmp/file.sock\"\n")
	if c, err = Load(""); err != nil || c.Containerd.Address != "/tmp/file.sock" {
		t.Errorf("the file does not win over the environment: %v, %v", c, err)
	}
}

func TestParseSize(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want Size
	}{
		{"0", 0}, {"1024", 1024}, {"16MiB", 16 << 20}, {"16 mib", 16 << 20}, {"500GB", 500e9},
		{"8mb", 8e6}, {"1.5GiB", 3 << 29}, {"1TiB", 1 << 40}, {"7B", 7}, {"9223372036854775807", 1<<63 - 1},
	} {
		got, err := ParseSize(tt.in)
		if err != nil || got != tt.want {
			t.Errorf("ParseSize(%q): got %d, %v, want %d", tt.in, got, err, tt.want)
		}
	}
	for _, in := range []string{"", "x", "-1", "-1GiB", "16M", "1e3MB", "NaN", "Inf", "9223372036854775808", "99999999TiB", "0x10"} {
		if got, err := ParseSize(in); err == nil {
			t.Errorf("ParseSize(%q): got %d, want an error", in, got)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"16MiB", "1.5GB", "0", "B", "-1", "1e9"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := ParseSize(s)
		if err != nil {
			return
		}
		if v < 0 {
			t.Fatalf("ParseSize(%q) = %d", s, v)
		}
		if back, err := ParseSize(v.String()); err != nil || back != v {
			t.Fatalf("%q is %d, printed as %q, read as %d, %v", s, v, v, back, err)
		}
	})
}

func clearEnvironment(t *testing.T) {
	t.Helper()
	for _, k := range []string{"BALLAST_CONFIG", "BALLAST_ADMIN", "CONTAINERD_ADDRESS", "DOCKER_CONFIG"} {
		t.Setenv(k, "")
	}
}

func write(t *testing.T, path, s string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(s), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestLayout finds the directory of a model by the first table that matches.
func TestLayout(t *testing.T) {
	clearEnvironment(t)
	file := filepath.Join(t.TempDir(), "config.toml")
	write(t, file, `
version = 1
[[layout]]
match = "ghcr.io/team/plain*"
[[layout]]
match = "ghcr.io/team/*"
prefix = "/models/"
[[layout]]
match = "registry.example:5000"
prefix = "a/b"
`)
	c, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"ghcr.io/team/plain-1": "", "ghcr.io/team/chat": "models", "ghcr.io/Team/chat": "models", "ghcr.io/other/chat": "",
		"registry.example:5000/x": "a/b", "registry.example:5001/x": "",
	} {
		if got := c.PrefixOf(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// TestVerifyRules finds files relative to the file that names them, and matches hosts without a
// port.
func TestVerifyRules(t *testing.T) {
	clearEnvironment(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "config.toml"), `
version = 1
[[verify.rule]]
match = "registry.example:5000/team/*"
mode = "enforce"
any = [{type = "oms", key = "team.pub"}, {type = "cosign", roots = "/ca.pem", subject = "email:release@team.example"},
  {type = "cosign", issuer = "https://accounts.example", subject = "release@team.example", trusted_root = "trusted_root.json"}]
deny_code = true
licenses = ["mit"]
`)
	c, err := Load(filepath.Join(dir, "config.toml"))
	if err != nil {
		t.Fatal(err)
	}
	want := []VerifyRule{{
		Match: "registry.example:5000/team/*", Mode: VerifyEnforce, DenyCode: true, Licenses: []string{"mit"},
		Any: []Signer{
			{Type: SignerOMS, Key: filepath.Join(dir, "team.pub")}, {Type: SignerCosign, Roots: "/ca.pem", Subject: "email:release@team.example"},
			{Type: SignerCosign, Issuer: "https://accounts.example", Subject: "release@team.example", TrustedRoot: filepath.Join(dir, "trusted_root.json")},
		},
	}}
	if diff := cmp.Diff(c.Verify.Rule, want); diff != "" {
		t.Errorf("rules (-got +want):\n%s", diff)
	}
	for _, tt := range []struct {
		match, name string
		want        bool
	}{
		{"registry.example:5000/team/*", "registry.example:5000/team/m", true},
		{"registry.example:5000/team/*", "registry.example/team/m", false},
		{"registry.example:5000/team/*", "registry.example:5001/team/m", false},
		{"registry.example:5000/team/*", "registry.example:5000/other/m", false},
		{"registry.example", "registry.example/team/m", true},
		{"registry.example", "registry.example:5000/team/m", false},
		{"*", "docker.io/ai/smollm2", true},
		{"*/team/*", "registry.example/team/a/b", true},
		{"Registry.Example/Team/*", "registry.example/team/m", true},
		{"hf.co/Qwen/*", "hf.co/qwen/qwen3-8b", true},
		{"hf.co/qwen/*", "hf.co/Qwen/Qwen3-8B", true},
		{"huggingface.co/Qwen/*", "hf.co/qwen/qwen3-8b", true},
		{"ollama.com", "registry.ollama.ai/library/m", true},
		{"registry.ollama.ai/*", "ollama.com/library/m", true},
		{"index.docker.io/ai/*", "docker.io/ai/smollm2", true},
		{"docker.io/ai/*", "registry-1.docker.io/ai/smollm2", true},
		{"hf.co/*", "hf.com/qwen/qwen3-8b", false},
		{"registry.example:443/*", "registry.example/team/m", true},
		{"registry.example:0443", "registry.example/team/m", true},
		{"*.example:443/*", "registry.example/team/m", true},
		{"*.example:443/*", "registry.example:5000/team/m", false},
		{"*.example:05000/*", "registry.example:5000/team/m", true},
		{"registry.example:*", "registry.example/team/m", true},
		{"registry.example:*", "registry.example:5000/team/m", true},
		{"registry.example*", "registry.example:5000/team/m", true},
		{"carton+https://Models.Example:443/*", "carton+https://models.example/a.carton", true},
		{"carton+https://models.example/*", "carton+https://models.example:443/a.carton", true},
		{"carton+http://models.example:80/*", "carton+http://models.example/a.carton", true},
		{"carton+http://models.example:443/*", "carton+http://models.example/a.carton", false},
		{"carton+https://models.example:5000/*", "carton+https://models.example/a.carton", false},
	} {
		if got := (&VerifyRule{Match: tt.match}).Matches(tt.name); got != tt.want {
			t.Errorf("%s matches %s: %v", tt.match, tt.name, got)
		}
	}
	for _, tt := range []struct {
		match, name string
		want        bool
	}{
		{"registry.example:5000/team/*", "registry.example/team/m", true},
		{"registry.example:*/team/*", "registry.example/team/m", true},
		{"index.docker.io:5000", "docker.io/team/m", true},
		{"[::1]:5000", "[::1]/team/m", true},
		{"registry.example:5000/team/*", "registry.example:5000/team/m", false}, // it matches
		{"registry.example:5000/team/*", "registry.example:5001/team/m", false},
		{"registry.example:5000/team/*", "registry.example/other/m", false},
		{"registry.example/team/*", "registry.example/team/m", false},
		{"carton+https://models.example:5000/*", "carton+https://models.example/a.carton", false},
	} {
		if got := (&VerifyRule{Match: tt.match}).MayMatch(tt.name); got != tt.want {
			t.Errorf("%s may match %s: %v", tt.match, tt.name, got)
		}
	}
}

package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/mediatype"
)

// A mistake is a command line that is wrong, or is for something that is not there, and all that
// stderr says about it but the usage line. HOST is a registry without TLS, DIR a directory with
// files of a model.
type mistake struct {
	name, args string
	want       string
	code       int
}

var mistakes = []mistake{
	{"no registry in the name", "-q prefetch llama3.2", `reference "llama3.2" does not name a registry; write for example registry.ollama.ai/library/llama3.2 or docker.io/ai/llama3.2`, 2},
	{"no registry, with an owner", "-q prefetch ai/smollm2", `reference "ai/smollm2" does not name a registry; write for example docker.io/ai/smollm2 or ghcr.io/ai/smollm2`, 2},
	{"upper case without a registry", "-q prefetch Llama3.2", `"Llama3.2" is not a reference: REGISTRY/REPOSITORY[:TAG][@DIGEST], in lower case`, 2},
	{"the page of a file at Hugging Face", "-q prefetch https://huggingface.co/Qwen/Qwen3-0.6B/blob/main/model.safetensors", `"https://huggingface.co/Qwen/Qwen3-0.6B/blob/main/model.safetensors" is one file of a repository; write hf:Qwen/Qwen3-0.6B@main for the repository; convert and inspect --remote take --include 'model.safetensors' too`, 2},
	{"the download of a file at Hugging Face", "digest https://huggingface.co/Qwen/Qwen3-0.6B/resolve/main/model.safetensors", `"https://huggingface.co/Qwen/Qwen3-0.6B/resolve/main/model.safetensors" is one file of a repository; write hf:Qwen/Qwen3-0.6B@main for the repository; convert and inspect --remote take --include 'model.safetensors' too`, 2},
	{"a folder at Hugging Face", "inspect --remote huggingface.co/Qwen/Qwen3-0.6B/tree/main/onnx", `"huggingface.co/Qwen/Qwen3-0.6B/tree/main/onnx" is one directory of a repository; write hf:Qwen/Qwen3-0.6B@main for the repository; convert and inspect --remote take --include 'onnx/' too`, 2},
	{"a data set at Hugging Face", "-q prefetch https://huggingface.co/datasets/a/b", `"https://huggingface.co/datasets/a/b" is a page of the Hub that is not the page of a model; write hf:ORG/REPO`, 2},
	{"a list of tags at ollama.com", "convert https://ollama.com/library/llama3.2/tags oci:DIR/o", `"https://ollama.com/library/llama3.2/tags" is a page that is not that of a model; write ollama.com/library/NAME:TAG or ollama.com/USER/NAME:TAG`, 2},
	{"another web page", "-q prefetch https://example.com/a", `"https://example.com/a" is a URL; a reference is REGISTRY/REPOSITORY[:TAG][@DIGEST]`, 2},
	{"a model of Ollama", "-q prefetch ollama:demo", `ollama:demo is on this machine: use "ballast import ollama demo"`, 2},
	{"a directory", "-q prefetch ./m", `./m is on this machine: publish it first, with "ballast convert ./m REGISTRY/REPOSITORY:TAG"`, 2},
	{"a layout", "-q prefetch oci:DIR:v1", `oci:DIR:v1 is on this machine: publish it first, with "ballast convert oci:DIR:v1 REGISTRY/REPOSITORY:TAG"`, 2},
	{"a list that is not there", "-q prefetch --file DIR/none.txt", "--file: open DIR/none.txt: no such file or directory", 2},
	{"a target that is a file", "convert DIR out.zip", `"out.zip" is not a target: write REGISTRY/REPOSITORY:TAG, oci:DIR, or with --as carton FILE.carton`, 2},
	{"a target that is a directory", "convert DIR out", `"out" is not a target: write REGISTRY/REPOSITORY:TAG, oci:DIR, or with --as carton FILE.carton`, 2},
	{"a target that is a URL", "convert DIR https://h.example/x", `"https://h.example/x" is not a target: write REGISTRY/REPOSITORY:TAG, oci:DIR, or with --as carton FILE.carton`, 2},
	{"a tag that no layout can have", "convert DIR oci:DIR/o:my__tag", `oci:DIR/o:my__tag: "my__tag" is no tag of an OCI layout: that has letters and digits (A-Z, a-z, 0-9), and between them one of - . _ : @ + / or --`, 2},
	{"no target", "convert DIR", "no target given: write for example ghcr.io/team/model:v1 or oci:DIR after SRC", 2},
	{"an unknown form", "convert DIR HOST/a/b:v1 --as zip", `--as "zip": forms are ballast, modelpack, cnai, image, carton`, 2},
	{"an unknown compression", "convert DIR HOST/a/b:v1 --compress gzip", `compression "gzip" is not one of zstd-seekable, zstd-chunked`, 2},
	{"an unknown state", "ls -f state=komplete", "--filter state=komplete: the values are complete, lazy, pulling, partial, absent, invalid, index", 2},
	{"an unknown format", "ls -f format=gguf", "--filter format=gguf: the values are modelpack, cnai, cnai-early, docker-ai, kitops, cog, ollama, ollama-list, carton, artifact, index", 2},
	{"an unknown key", "ls -f size=3", `--filter has no key "size"; its keys are state, format, ref, pinned, used`, 2},
	{"neither true nor false", "ls -f pinned=yes", "--filter pinned=yes: the values are true, false", 2},
	{"a time in words", "-q prefetch HOST/a/model:v1 --ttl soon", `--ttl "soon": write a time such as 12h, 3d or 2w`, 2},
	{"a negative time", "pin HOST/a/model:v1 --ttl -1h", `--ttl "-1h": it is negative`, 2},
	{"a flag without a dash", "gc --dryrun", "there is no flag --dryrun: did you mean --dry-run?", 2},
	{"a shorthand that is not there", "-q prefetch -f list.txt", "there is no flag -f: did you mean --file?", 2},
	{"a size without a unit", "gc --keep 5", `--keep: size "5" has no unit: 5GB?`, 2},
	{"a rate without a unit", "-q pull HOST/a/model:v1 --limit-rate 50", `--limit-rate "50": size "50" has no unit: 50GB?`, 2},
	{"gc in a script", "gc", "there is no terminal to ask on: write --yes, or --dry-run to see what would be removed", 2},
	{"a digest that is too short", "rm sha256:abc", `"sha256:abc" is not a digest: after sha256: come 6 to 64 digits of 0-9 and a-f, not 3 characters`, 2},
	{"two names", "inspect HOST/a/model:v1 HOST/a/model:v2", `one model expected, got 2: ["HOST/a/model:v1" "HOST/a/model:v2"]`, 2},
	{"pull without a name", "pull", "no model given", 2},
	{"a daemon for a dry run", "setup --remove --with-daemon --dry-run --host DIR", "--with-daemon runs ballastd, and --dry-run runs nothing; without --with-daemon it shows the rest of the plan", 2},
	{"pin without a name", "pin", "no model given", 2},
	{"mount without a name", "mount", `a model and a directory expected; "ballast mount ls" lists mounts`, 2},
	{"import without a source", "import", "name an archive, oci:DIR, TAR or - for stdin, or use \"ballast import ollama\"", 2},
	{"config without a subject", "config", "ballast config needs a command: containerd, hosts, rotate-ca", 2},
	{"images", "images", `there is no command "images": use "ballast ls"`, 2},
	{"a name for a list", "ls HOST/a/model:v1", `"ballast ls" takes no names; for one model: "ballast inspect HOST/a/model:v1"`, 2},
	{"a name for all", "gc HOST/a/model:v1", `"ballast gc" takes no names; for one model: "ballast rm HOST/a/model:v1"`, 2},
	{"a word too many", "doctor x", `"ballast doctor" takes no arguments, got "x"`, 2},
	{"unmount without a directory", "unmount", `a directory expected; "ballast mount ls" lists mounts`, 2},
	{"seed without a directory", "seed", "a directory and models expected", 2},
	{"a word for a number", "top -n x", `--iterations "x": a number is expected`, 2},
	{"a word for a truth value", "gc --yes=maybe", `--yes "maybe": true or false is expected`, 2},
	{"remove, and close", "setup --remove --registry x", "--remove removes ballast from all registries; --open REGISTRY from one", 2},
	{"open, and close", "setup --open y --registry x", "--registry closes a registry and --open opens one: run setup for each", 2},
	{"all, as in docker", "ls -a", "there is no flag -a: commands without a name are about all models, and the admin socket is --address", 2},
	{"an address, as in ctr", "-a /run/x.sock ls", "there is no flag -a: commands without a name are about all models, and the admin socket is --address", 2},
	{"names of sizes", "df -q", "sizes have no names that --quiet could print; for programs: -o json", 2},
	{"a flag without its value", "pin HOST/a/model:v1 --ttl", "--ttl needs a value", 2},
	{"JSON, as elsewhere", "ls --json", `there is no flag --json: use "-o json"`, 2},
	{"a time for pull", "pull HOST/a/model:v1 --ttl 3h", `there is no flag --ttl: use "ballast prefetch --ttl TIME"`, 2},
	{"no time", "pin HOST/a/model:v1 --ttl 0", `--ttl "0": it is zero; without the flag, pins stay`, 2},
	{"-v", "-v", `there is no flag -v: use "ballast version"`, 2},
	{"another form of output", "ls -o wide", `--output "wide": "wide" is not one of table, json`, 2},
	{"a template that is none", "ls --format {{.digest", "template: --format:1: unclosed action", 2},
	{"the scheme of another store", "pull s3://b/k", `"s3://b/k" has the scheme s3; a reference is REGISTRY/REPOSITORY[:TAG][@DIGEST]`, 2},
	{"a tag for a digest", "pull HOST/a/model@1", `reference "HOST/a/model@1" has no digest after @: sha256: and 64 digits of 0-9 and a-f`, 2},
	{"a colon without a tag", "pull HOST/a/model:", `reference "HOST/a/model:" ends with a colon; write a tag after it, or nothing`, 2},
	{"a slash at the end", "pull HOST/a/model/", `reference "HOST/a/model/" ends with a slash`, 2},
	{"another page of Docker Hub", "pull https://hub.docker.com/u/ai", `"https://hub.docker.com/u/ai" is a page that is not that of a model; write docker.io/ai/NAME:TAG`, 2},
	{"import of a reference", "import ghcr.io/a/b:c", `ghcr.io/a/b:c is no file; to get it from a registry: "ballast pull ghcr.io/a/b:c"`, 2},
	{"an upper case name", "-q prefetch HOST/a/None:v1", "HOST/a/None:v1: HOST has no such repository or tag; most registries have names in lower case only", 3},
	{"install", "install", `there is no command "install": use "ballast setup"`, 2},
	{"uninstall", "uninstall", `there is no command "uninstall": use "ballast setup --remove"`, 2},
	{"check", "check", `there is no command "check": use "ballast doctor"`, 2},
	{"clean", "clean", `there is no command "clean": use "ballast gc"`, 2},
	{"sign", "sign HOST/a/model:v1", `there is no command "sign": use "ballast convert SRC DST --sign KEY"`, 2},
	{"stop", "stop", `there is no command "stop": use "systemctl stop ballastd"`, 2},
	{"stats", "stats", `there is no command "stats": use "ballast top"`, 2},
	{"cp", "cp a b", `there is no command "cp": use "ballast convert SRC DST"`, 2},
	{"a short word", "help nope", `there is no command "nope": "ballast --help" lists all`, 2},
	{"ps", "ps", `there is no command "ps": use "ballast ls"`, 2},
	{"rmi", "rmi HOST/a/model:v1", `there is no command "rmi": use "ballast rm"`, 2},
	{"push", "push HOST/a/model:v1", `there is no command "push": use "ballast convert SRC DST"`, 2},
	{"logs", "logs", `there is no command "logs": use "journalctl -u ballastd"`, 2},
	{"show", "show x", `there is no command "show": use "ballast inspect"`, 2},
	{"prune", "prune", `there is no command "prune": use "ballast gc"`, 2},
	{"run, with flags", "run -it x", `there is no command "run": use "ballast mount REF DIR"`, 2},
	{"a misspelt command", "prefech x", `there is no command "prefech": did you mean prefetch?`, 2},
	{"a misspelt command below another", "config host", `there is no command "host": did you mean hosts?`, 2},
	{"a word like rm", "rmx", `there is no command "rmx": "ballast --help" lists all`, 2},
	{"any word", "teleport", `there is no command "teleport": "ballast --help" lists all`, 2},
	{"no such configuration", "--config DIR/none.toml ls", "--config: stat DIR/none.toml: no such file or directory", 2},
	{"a text for a number", "--config DIR/type.toml digest x.y/z", "DIR/type.toml:3: fetch.connections is a number, such as 8", 2},
	{"a truth value for a text", "--config DIR/bool.toml digest x.y/z", "DIR/bool.toml:3: lazy.mode is a text in quotes, such as 'auto'", 2},
	{"a text for a list", "--config DIR/list.toml digest x.y/z", "DIR/list.toml:3: upstream.allow_hosts is a list in brackets", 2},
	{"a time without a unit", "--config DIR/dur.toml digest x.y/z", `DIR/dur.toml:3: fetch.linger: duration "5" has no unit: 5s?`, 2},
	{"a part of a byte", "--config DIR/reserve.toml digest x.y/z", `DIR/reserve.toml:3: fetch.reserve: size "5.5" has no unit: 5.5GB?`, 2},
	{"a misspelt key", "--config DIR/key.toml digest x.y/z", `DIR/key.toml:3: unknown key "fetch.conections"`, 2},
	{"no version", "--config DIR/version.toml digest x.y/z", `DIR/version.toml has no "version = 1" line; write it at the top`, 2},
	{"an open bracket", "--config DIR/syntax.toml digest x.y/z", "DIR/syntax.toml:2: expected ']' to close table name", 2},
	{"daemon stopped", "--address DIR/none.sock ls", "ballastd is not running (systemctl start ballastd), or it has another admin socket (--address): dial unix DIR/none.sock: connect: no such file or directory", 7},
	{"tag forgotten", "-q prefetch HOST/a/tagged", `HOST/a/tagged:latest: HOST has no such repository or tag; a reference without a tag has the tag "latest"`, 3},
	{"tag wrong", "-q prefetch HOST/a/tagged:v9", "HOST/a/tagged:v9: HOST has no such repository or tag", 3},
	{"repository wrong", "digest HOST/a/none:v1", "HOST/a/none:v1: HOST has no such repository or tag", 3},
	{"repository wrong, convert", "convert HOST/a/none:v1 oci:DIR/o", "HOST/a/none:v1: HOST has no such repository or tag", 3},
	{"private repository", "-q prefetch HOST/a/private:v1", "HOST/a/private:v1: HOST requires credentials, or rejected those that it got (UNAUTHORIZED authentication required); log in, for upstream.docker_config: docker login HOST", 4},
	{"private repository, digest", "digest HOST/a/private:v1", "HOST/a/private:v1: HOST requires credentials, or rejected those that it got (UNAUTHORIZED authentication required); log in, for upstream.docker_config: docker login HOST", 4},
	{"repository of others", "-q prefetch HOST/a/denied:v1", "HOST/a/denied:v1: HOST answered 403 Forbidden: DENIED requested access to the resource is denied; ask the registry's owner for access, or use other credentials", 4},
	{"too many requests", "digest HOST/a/limited:v1", "HOST/a/limited:v1: HOST answered 429 Too Many Requests: TOOMANYREQUESTS rate limit; its limit may be higher after docker login HOST", 7},
	{"registry in trouble", "digest HOST/a/broken:v1", "HOST/a/broken:v1: HOST answered 500 Internal Server Error; try again later", 7},
	{"registry down", "-q prefetch 127.0.0.1:1/a/b:v1", "127.0.0.1:1/a/b:v1: 127.0.0.1:1 does not answer: connect: connection refused", 7},
	{"a registry of this machine without its port", "digest localhost/m:v1", "localhost/m:v1: localhost does not answer at port 443: connect: connection refused; write the port of a registry of this machine: localhost:5000/NAME", 7},
	{"plain HTTP", "--config DIR/https.toml digest HOST/a/model:v1", `HOST/a/model:v1: HOST does not speak TLS; for plain HTTP, write server = "http://HOST" to DIR/hosts/HOST/hosts.toml`, 11},
	{"an ordinary image", "-q prefetch HOST/a/image:v1", "HOST/a/image:v1: not a model; containerd pulls images itself", 8},
	{"a web server", "-q prefetch HOST/a/html:v1", `HOST/a/html:v1: HOST: the answer ("text/html") is not a manifest; is it a registry?`, 10},
	{"not here: inspect", "inspect HOST/a/model:v1", `HOST/a/model:v1: no such model on this node ("ballast ls" lists all); "ballast inspect --remote" asks the registry`, 3},
	{"not here: rm", "rm HOST/a/model:v1", `HOST/a/model:v1: no such model on this node ("ballast ls" lists all)`, 3},
	{"not here: without a tag", "rm HOST/a/model", `HOST/a/model: no such model on this node ("ballast ls" lists all); a reference without a tag has the tag "latest"`, 3},
	{"not here: prefetch", "-q prefetch sha256:012345", `sha256:012345: no such model on this node; a reference fetches a new one`, 3},
	{"not here: path", "path HOST/a/model:v1", "model HOST/a/model is not complete, and cannot be read before that; download it first: ballast prefetch HOST/a/model:v1", 11},
	{"not mounted", "unmount DIR", "no model is mounted at DIR", 3},
	{"no such directory to mount at", "mount HOST/a/model:v1 DIR/none", "DIR/none: no such directory; make it first", 2},
	{"no rule", "verify --signatures HOST/a/model:v1", "HOST/a/model:v1: nothing was checked: no [[verify.rule]] of the configuration matches it; add one, and restart ballastd", 11},
	{"no such file", "convert DIR/none oci:DIR/o", "DIR/none: no such file or directory", 3},
	{"no store of Ollama", "import ollama x --dir DIR/none", "x: ollama store: open DIR/none: no such file or directory", 3},
}

// TestMistakes checks that each mistake has one line that names it and, where there is one, the cure.
func TestMistakes(t *testing.T) {
	s := newSite(t)
	s.add("a/model", 1, 1000)
	s.add("a/tagged", 1, 1000)
	s.Put("a/image", "v1", []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":0},"layers":[]}`), mediatype.OCIManifest)
	s.Before(func(w http.ResponseWriter, r *http.Request) bool {
		says := func(status int, code, message string) bool {
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"errors":[{"code":%q,"message":%q}]}`, code, message)
			return true
		}
		switch p := r.URL.Path; {
		case strings.Contains(p, "/tagged/manifests/"), strings.Contains(strings.ToLower(p), "/none/manifests/"):
			return says(http.StatusNotFound, "MANIFEST_UNKNOWN", "manifest unknown")
		case strings.Contains(p, "/private/"):
			w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			return says(http.StatusUnauthorized, "UNAUTHORIZED", "authentication required")
		case strings.Contains(p, "/denied/"):
			return says(http.StatusForbidden, "DENIED", "requested access to the resource is denied")
		case strings.Contains(p, "/limited/"):
			w.Header().Set("Retry-After", "0")
			return says(http.StatusTooManyRequests, "TOOMANYREQUESTS", "rate limit")
		case strings.Contains(p, "/broken/"):
			w.WriteHeader(http.StatusInternalServerError)
			return true
		case strings.Contains(p, "/html/"):
			fmt.Fprint(w, "<html>")
			return true
		}
		return false
	})
	dir := modelDir(t)
	for name, text := range map[string]string{
		"type.toml":    "version = 1\n[fetch]\nconnections = \"many\"\n",
		"dur.toml":     "version = 1\n[fetch]\nlinger = 5\n",
		"bool.toml":    "version = 1\n[lazy]\nmode = true\n",
		"key.toml":     "version = 1\n[fetch]\nconections = 5\n",
		"version.toml": "[fetch]\nconnections = 5\n",
		"reserve.toml": "version = 1\n[fetch]\nreserve = 5.5\n",
		"list.toml":    "version = 1\n[upstream]\nallow_hosts = \"x\"\n",
		"syntax.toml":  "version = 1\n[fetch\n",
		"https.toml":   "version = 1\n[upstream]\nhosts_dir = \"" + dir + "/hosts\"\n",
		"hosts/" + strings.Replace(s.Host(), ":", "_", 1) + "_/hosts.toml": "server = \"https://" + s.Host() + "\"\n",
	} {
		put(t, dir, name, []byte(text))
	}
	t.Chdir(dir)
	if err := os.Mkdir("out", 0o755); err != nil {
		t.Fatal(err)
	}
	fill := strings.NewReplacer("HOST", s.Host(), "DIR", dir)
	empty := strings.NewReplacer(s.Host(), "HOST", dir, "DIR")
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			code, stdout, stderr := s.ballast(t.Context(), strings.Fields(fill.Replace(m.args))...)
			line, rest, _ := strings.Cut(empty.Replace(stderr), "\n")
			if code != m.code || line != "ballast: "+m.want || stdout != "" {
				t.Errorf("ballast %s: code %d, %q, %q; want code %d, %q", m.args, code, line, stdout, m.code, m.want)
			}
			if rest != "" && !(code == exitUsage && strings.HasPrefix(rest, "usage: ballast ") && strings.Count(rest, "\n") == 1) {
				t.Errorf("more lines: %q", rest)
			}
		})
	}
}

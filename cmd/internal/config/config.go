package config

import (
	"slices"
	"strings"
	"time"
)

// Version is the version of the configuration file.
const Version = 1

// DefaultPath is the configuration file that is read if no other is named.
const DefaultPath = "/etc/ballast/config.toml"

// Config is the configuration of the daemon, and of the command line where it needs to know
// what the daemon does.
type Config struct {
	Version int `toml:"version" comment:"Version of this file."`

	Root         string `toml:"root" comment:"Everything that ballast keeps. One file system must hold all of it: the objects are\nlower layers of overlay mounts, and files move between directories by rename."`
	Address      string `toml:"address" comment:"Socket of the snapshotter and the differ, for containerd's proxy_plugins."`
	AdminAddress string `toml:"admin_address" comment:"Socket of the admin interface, for the ballast command. Only root can open it."`

	Log        Log        `toml:"log"`
	Containerd Containerd `toml:"containerd"`
	Facade     Facade     `toml:"facade"`
	Fleet      Fleet      `toml:"fleet"`
	Upstream   Upstream   `toml:"upstream"`
	Fetch      Fetch      `toml:"fetch"`
	Snapshot   Snapshot   `toml:"snapshot"`
	Lazy       Lazy       `toml:"lazy"`
	Verify     Verify     `toml:"verify,omitempty"`
	GC         GC         `toml:"gc"`
	Metrics    Metrics    `toml:"metrics"`

	Carton []Carton `toml:"carton,omitempty"`
}

// Log says what the daemon writes to stderr.
type Log struct {
	Level  string `toml:"level" comment:"debug, info, warn or error."`
	Format string `toml:"format" comment:"text or json."`
}

// Containerd says where containerd is.
type Containerd struct {
	Address string `toml:"address" comment:"Socket of containerd. The differ reads layers from its content store."`
}

// Facade says where the registry facade listens.
type Facade struct {
	Listen      string `toml:"listen" comment:"Where containerd asks for manifests; see \"ballast config hosts\". Empty: no facade, only\nmodels that were converted before they were pushed can be pulled."`
	AllowRemote bool   `toml:"allow_remote" comment:"Allow listen to be an address that other machines reach. They need the files that\nhosts.toml names, which are renewed, and the host of listen is what they have to call it by."`

	OriginDigests bool `toml:"origin_digests" comment:"Let pods mount a public model by the digest that its registry gives it, where that is safe. Without,\nas where it is not, the pull fails with the digest of the converted image, which always works."`

	InsecurePlainHTTP bool `toml:"insecure_plain_http" comment:"For tests only: speak plain HTTP. Whoever can use the port then gets what the node can\npull, and whoever binds it while ballastd is down gets pull secrets and decides what images are."`
}

// Fleet says which nodes ask each other what they made a converted image of, so that its digest can be pulled on a
// node that never saw the tag.
type Fleet struct {
	Listen string   `toml:"listen" comment:"Address at which other nodes ask this one, such as \"0.0.0.0:5758\". Empty: they can not."`
	Nodes  []string `toml:"nodes" comment:"\"host:port\" of other nodes, or of a name that has the addresses of many. Their certificates\nhave to be for the host."`
	CA     string   `toml:"ca" comment:"PEM files by which nodes know each other: the CA of all, and the certificate and key of this one."`
	Cert   string   `toml:"cert"`
	Key    string   `toml:"key"`
}

// Upstream says how registries are reached.
type Upstream struct {
	HostsDir     string   `toml:"hosts_dir" comment:"Directory of hosts.toml files for the daemon's own requests (mirrors, certificates), in the\nformat of containerd. Entries that lead back to the facade are left out."`
	DockerConfig string   `toml:"docker_config" comment:"File with credentials and credential helpers of the node, in the format of Docker. They are for\nwhat is asked for over the admin socket, such as a prefetch. Empty: none."`
	Share        []string `toml:"share_credentials" comment:"Hosts, as in references, for which the credentials in docker_config are used for everybody: any\npod then pulls what the node can read there, without a secret of its own."`
	KeepSecrets  bool     `toml:"keep_secrets" comment:"Keep pull secrets of models that are shown but not complete on the disk, sealed, so that the rest\ncan be fetched after a restart. Otherwise they are in memory only."`
	AllowHosts   []string `toml:"allow_hosts" comment:"Hosts that registries may redirect to, or have their token server at, although they are not\npublic: names, \"name:port\", addresses, or networks such as \"10.0.0.0/8\"."`
	OllamaHosts  []string `toml:"ollama_hosts" comment:"Registries with the manners of the Ollama registry, besides registry.ollama.ai: no HEAD, no\ndigests in answers, manifests as text/plain."`
	OllamaRunner string   `toml:"ollama_runner" comment:"Which model is taken of an Ollama list: that for llamacpp, ggml or mlx. Empty: the first of\nthese that there is. A tag that ends so, such as \"27b-mlx\", names one too."`
	Artifacts    []string `toml:"artifacts" comment:"Repositories whose artifacts are mounted by the titles of their layers, as \"oras push\" writes\nthem, although they are no models: host, or host/repository; * stands for any characters."`
	UserAgent    string   `toml:"user_agent" comment:"User-Agent of requests. Empty: ballast and its version."`
	StallTimeout Duration `toml:"stall_timeout" comment:"A transfer that brings less than 1 KiB a second for this long is given up and tried again."`
}

// Fetch says how blobs are fetched.
type Fetch struct {
	Connections int      `toml:"connections" comment:"Ranges fetched at the same time, over all blobs. Far registries may want more."`
	Reserve     Size     `toml:"reserve" comment:"Space that stays free on the file system. A fetch that would go below it is refused before\nits first byte."`
	Linger      Duration `toml:"linger" comment:"How long a fetch goes on after the last one who waited for it has gone. A kubelet that gives\nup and asks again then finds the work done."`
}

// Snapshot says how models are shown.
type Snapshot struct {
	Show string `toml:"show" comment:"stubs: files without data over data-only lower layers (Linux 6.5); links: hard links to the\nobjects (any kernel); auto: stubs where the kernel can."`
}

// Lazy says when models are shown that are not complete, and how the rest comes.
type Lazy struct {
	Mode        string     `toml:"mode" comment:"When a model is shown. auto: at once if its large files have digests of chunks, otherwise when\nit is complete; lazy: at once whenever the digests of its files are known, readers of a file\nwithout chunks wait for all of it; complete: when all of it is there. Needs stubs and FUSE."`
	Verify      string     `toml:"verify" comment:"chunk: no byte is read before a digest over it has matched. after: files without digests of\nchunks are read at once too, and verified when they are complete; until then a wrong registry\nor a broken transfer can show wrong bytes."`
	ReadAhead   Size       `toml:"read_ahead" comment:"What the kernel reads ahead of a reader of a file that is not complete, and around a random\naccess to a mapping of it."`
	Rate        Size       `toml:"rate" comment:"Bytes a second for what nobody waits for. 0: as fast as it goes; readers always go first."`
	Passthrough bool       `toml:"passthrough" comment:"Let the kernel read complete files itself in mounts that were made before they were (Linux 6.9)."`
	IDMap       bool       `toml:"idmap" comment:"Let pods in user namespaces read models that are not complete (Linux 6.12). false: they get\nmodels when they are complete, as on older kernels. Counts when the mount is made anew."`
	Holder      string     `toml:"holder" comment:"What keeps the mount of files that are not complete while the daemon is down. auto: the service\nmanager if it can, otherwise a process of our own; process: that; outside: one that is started beside the\ndaemon, \"ballastd holder --stay\", as in a container; none: such files can not be read while the\ndaemon is down, and open ones have to be opened again."`
	Rule        []LazyRule `toml:"rule,omitempty"`
}

// LazyRule is a mode for some models.
type LazyRule struct {
	Match string `toml:"match" comment:"host, or host/repository; * stands for any characters. The first rule that matches counts."`
	Mode  string `toml:"mode"`
}

// GC says when objects that nothing refers to are removed. Until then they stay, so that a
// model that comes back is there at once.
type GC struct {
	Interval Duration `toml:"interval" comment:"Time between two looks at the file system."`
	High     Percent  `toml:"high" comment:"Use of the file system above which objects without a reference are removed, the longest\nunused first, until it is at low. 85% and 80% are what the kubelet takes for images."`
	Low      Percent  `toml:"low"`
	Quota    Size     `toml:"quota" comment:"Most that objects and unfinished fetches together may take; as high and low, but in bytes.\n0: no quota. What is referred to is never removed."`
}

// Metrics says where metrics are served besides the admin socket.
type Metrics struct {
	Listen string `toml:"listen" comment:"Address of an HTTP server with /metrics, such as \"127.0.0.1:9757\". Empty: none; the admin\nsocket has /metrics always."`
}

// Default returns the configuration of an empty file.
func Default() *Config {
	return &Config{
		Version:      Version,
		Root:         "/var/lib/ballast",
		Address:      "/run/ballast/ballastd.sock",
		AdminAddress: "/run/ballast/admin.sock",
		Log:          Log{Level: "info", Format: "text"},
		Containerd:   Containerd{Address: "/run/containerd/containerd.sock"},
		Facade:       Facade{Listen: "127.0.0.1:5757", OriginDigests: true},
		Fleet:        Fleet{Nodes: []string{}},
		Upstream: Upstream{
			HostsDir:     "/etc/ballast/hosts.d",
			DockerConfig: "/root/.docker/config.json",
			Share:        []string{},
			KeepSecrets:  true,
			AllowHosts:   []string{},
			OllamaHosts:  []string{},
			Artifacts:    []string{},
			StallTimeout: Duration{30 * time.Second},
		},
		Fetch: Fetch{
			Connections: 8,
			Reserve:     1 << 30, // 1 GiB
			Linger:      Duration{5 * time.Minute},
		},
		Snapshot: Snapshot{Show: ShowAuto},
		Lazy:     Lazy{Mode: ModeAuto, Verify: VerifyChunk, ReadAhead: 8 << 20, Passthrough: true, IDMap: true, Holder: HolderAuto},
		GC:       GC{Interval: Duration{5 * time.Minute}, High: 85, Low: 80},
	}
}

// The values of Snapshot.Show.
const (
	ShowAuto  = "auto"
	ShowStubs = "stubs"
	ShowLinks = "links"
)

// The values of Lazy.Mode and LazyRule.Mode.
const (
	ModeAuto     = "auto"
	ModeLazy     = "lazy"
	ModeComplete = "complete"
)

// The values of Lazy.Verify.
const (
	VerifyChunk = "chunk"
	VerifyAfter = "after"
)

// The values of Lazy.Holder.
const (
	HolderAuto    = "auto"
	HolderProcess = "process"
	HolderOutside = "outside"
	HolderNone    = "none"
)

// ModeOf returns the mode for a model that was got from a repository, "host/path".
func (l *Lazy) ModeOf(repository string) string {
	host, _, _ := strings.Cut(repository, "/")
	for _, r := range l.Rule {
		if r.matches(host) || r.matches(repository) {
			return r.Mode
		}
	}
	return l.Mode
}

// MountsTitled says whether artifacts of a repository, "host/path", are mounted by the titles of their layers.
func (u *Upstream) MountsTitled(repository string) bool {
	return slices.ContainsFunc(u.Artifacts, func(p string) bool { return (&VerifyRule{Match: p}).Matches(repository) })
}

func (r *LazyRule) matches(s string) bool { return matches(r.Match, s) }

// matches says whether s is as a pattern, in which * stands for any characters.
func matches(pattern, s string) bool {
	parts := strings.Split(pattern, "*")
	s, ok := strings.CutPrefix(s, parts[0])
	for i, p := range parts[1:] {
		if !ok {
			return false
		}
		if i == len(parts)-2 {
			return strings.HasSuffix(s, p)
		}
		_, s, ok = strings.Cut(s, p)
	}
	return ok && s == ""
}

package config

import (
	"slices"
	"time"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
)

// Version is the version of the configuration file.
const Version = 1

// DefaultPath is the configuration file if no other is given.
const DefaultPath = "/etc/ballast/config.toml"

// Config is the configuration of the daemon, and of those parts of the command line that need to
// know what the daemon does.
type Config struct {
	// From is the argument of Load, for another Load; "" without one.
	From string `toml:"-"`

	Version int `toml:"version" comment:"Version of the file format. Every file needs this line."`

	Root         string `toml:"root" comment:"Directory for everything that ballast stores, and for nothing else: a directory with files of others is\nrefused. It must be on one file system: files in it are lower layers of overlay mounts and are renamed\nbetween directories. Without colon, comma, backslash and white space, and at most 512 bytes long."`
	Address      string `toml:"address" comment:"Socket for containerd, as named in its proxy_plugins. Its directory is for sockets and mounts of ballast\nonly."`
	AdminAddress string `toml:"admin_address" comment:"Socket for the ballast command. Only root can open it. Its directory is as that of address."`

	Log        Log        `toml:"log" comment:"Log messages, on stderr."`
	Containerd Containerd `toml:"containerd" comment:"The containerd that ballastd works with."`
	Facade     Facade     `toml:"facade" comment:"The registry facade, which answers containerd's requests for tags with converted images."`
	Upstream   Upstream   `toml:"upstream" comment:"Requests of ballastd to registries."`
	Fetch      Fetch      `toml:"fetch" comment:"Downloads."`
	Snapshot   Snapshot   `toml:"snapshot" comment:"How the files of a model appear in a mount."`
	Lazy       Lazy       `toml:"lazy" comment:"Reading models before they are complete."`
	Verify     Verify     `toml:"verify,omitempty"`
	GC         GC         `toml:"gc" comment:"Garbage collection. Files that no snapshot, pin or download needs stay on the disk until space is\nneeded, so that a model that comes back is available at once."`
	Scrub      Scrub      `toml:"scrub" comment:"Reading stored files again in the background, to find and repair damage by disks. It waits while models are\ndownloaded, and goes on after a restart."`
	Metrics    Metrics    `toml:"metrics" comment:"Prometheus metrics."`
	Resolve    Resolve    `toml:"resolve" comment:"A socket at which users who are not root find mounted models (\"ballast resolve\")."`

	Layout []Layout `toml:"layout,omitempty" comment:"The place of models in mounts, for programs that expect them in a directory. It changes the digest of the converted\nimage, so all nodes of a cluster need the same tables. Tables in a later file replace all of those in earlier files."`
	Mirror []Mirror `toml:"mirror,omitempty" comment:"A program on the nodes of a cluster that passes blobs to others. Tables in a later file replace all of those in\nearlier files."`
	Carton []Carton `toml:"carton,omitempty" comment:"A registry host whose references point to cartons at URLs. Tables in a later file replace all of those in\nearlier files."`
}

// Log configures what the daemon writes to stderr.
type Log struct {
	Level  string `toml:"level" comment:"debug, info, warn or error."`
	Format string `toml:"format" comment:"text or json."`
}

// Containerd configures the connection to containerd.
type Containerd struct {
	Address string `toml:"address" comment:"Socket of containerd."`
}

// Facade configures the registry facade.
type Facade struct {
	Listen      string `toml:"listen" comment:"Address of the facade; ballastd.socket must name the same one. Empty: no facade, and only images\nfrom \"ballast convert\" can be pulled."`
	AllowRemote bool   `toml:"allow_remote" comment:"Allow an address in listen that other machines can reach. Their hosts.toml must use the host in\nlisten, and they need the key files that hosts.toml names, which ballastd renews."`

	OriginDigests bool `toml:"origin_digests" comment:"Let pods mount a model by the digest that its registry shows, where that is safe. If false, or\nwhere it is not safe, the pull fails and the error names the converted digest, which always works."`

	InsecurePlainHTTP bool `toml:"insecure_plain_http" comment:"For tests only: use plain HTTP without keys. Every user of the node can then pull what the node can\npull. A process that binds the port while ballastd is down receives pull secrets and can replace images."`

	Closed []HostsFile `toml:"closed,omitempty" comment:"The hosts.toml of a closed registry. \"ballast setup\" writes these tables into conf.d/00-closed.toml. ballastd\nlogs an error when another program replaces or removes such a file; it reads the tables again when they\nchange, without a restart."`
}

// HostsFile is a hosts.toml of containerd.
type HostsFile struct {
	File   string        `toml:"file" comment:"Its path."`
	Digest digest.Digest `toml:"digest" comment:"Its content, as \"sha256:\" and a checksum."`
}

// The directories of hosts.toml files of containerd's CRI, unless it is told others, are this one and that of Docker
// Engine.
// https://github.com/containerd/containerd/blob/v2.4.2/plugins/cri/images/plugin.go
// https://github.com/moby/moby/blob/docker-v29.0.0/daemon/hosts.go
const (
	ContainerdHostsDir = "/etc/containerd/certs.d"
	DockerHostsDir     = "/etc/docker/certs.d"
)

// Upstream configures access to registries.
type Upstream struct {
	HostsDir     string   `toml:"hosts_dir" comment:"Directory with REGISTRY/hosts.toml files for requests of ballastd: mirrors, plain HTTP, override_path,\ncertificates, headers. The format is that of containerd. Entries that point to the facade are\nignored. For URLs of cartons, only ca is used."`
	DockerConfig string   `toml:"docker_config" comment:"File with credentials and credential helpers of the node, in the format of Docker. They are used for\nwork of the operator, such as \"ballast prefetch\", and not for pods. Empty: none."`
	ProviderFile string   `toml:"credential_provider_config" comment:"File that lists credential provider plugins of the kubelet (its --image-credential-provider-config), which are\nasked for repositories that docker_config has no credentials for. Empty: none."`
	ProviderDir  string   `toml:"credential_provider_dir" comment:"Directory of the programs of these plugins (its --image-credential-provider-bin-dir)."`
	Share        []string `toml:"share_credentials" comment:"Registry hosts for which everybody on the node may use the credentials in docker_config: any pod can\nthen pull what the node can read there, without a pull secret."`
	KeepSecrets  bool     `toml:"keep_secrets" comment:"Keep the pull secrets of models that are mounted and not complete on the disk, encrypted, so that the\ndownload can continue after a restart. If false, they are in memory only."`
	AllowHosts   []string `toml:"allow_hosts" comment:"Private addresses to which registries may redirect, or at which they may have a token server: host\nnames, \"host:port\", addresses, or networks such as \"10.0.0.0/8\". Plain HTTP needs a\nhost name or \"host:port\"."`
	OllamaHosts  []string `toml:"ollama_hosts" comment:"Registries that behave as registry.ollama.ai does: no HEAD requests, no digests in responses, manifests\nas text/plain."`
	OllamaRunner string   `toml:"ollama_runner" comment:"Which model of an Ollama list to use: llamacpp, ggml or mlx. Empty: the first that exists, in this\norder. A tag with such a suffix, as in \"27b-mlx\", overrides this."`
	Artifacts    []string `toml:"artifacts" comment:"Repositories whose artifacts of files, as \"oras push\" writes them, are mounted by the titles of their\nlayers: host, or host/repository; * stands for any characters."`
	Offline      []string `toml:"offline" comment:"Registry hosts that this node cannot reach, so that ballastd never asks them: models of such a registry\ncome from \"ballast import\" or \"ballast seed\". * stands for any characters."`
	MirrorOnly   []string `toml:"mirror_only" comment:"Registry hosts that are never asked themselves, only their mirrors, for nodes that cannot reach them. What\nmirrors give counts as private to its repository then. * stands for any characters."`
	UserAgent    string   `toml:"user_agent" comment:"User-Agent of requests. Empty: ballast, its version and commit."`
	StallTimeout Duration `toml:"stall_timeout" comment:"Retry a transfer that receives less than 1 KiB per second for this long."`
}

// Layout is the place of some models in mounts. Images that were converted ahead of time have theirs.
type Layout struct {
	Match  string `toml:"match" comment:"host, or host/repository; * matches any characters. The first table that matches applies."`
	Prefix string `toml:"prefix" comment:"Directory with the files of the model, such as \"models\". Empty: none."`
}

// PrefixOf returns the directory for models of a repository, "host/path", or at a URL.
func (c *Config) PrefixOf(name string) string {
	for _, l := range c.Layout {
		if covers(l.Match, name) {
			prefix, _ := filetable.CleanPrefix(l.Prefix) // Validate has succeeded
			return prefix
		}
	}
	return ""
}

// Mirror is a program on the nodes of a cluster that passes blobs to others.
type Mirror struct {
	URL        string   `toml:"url" comment:"Its address on this node, such as \"http://127.0.0.1:65001\" (Dragonfly) or \"http://127.0.0.1:30020\" (Spegel)."`
	Kind       string   `toml:"kind" comment:"dragonfly or spegel."`
	Registries []string `toml:"registries" comment:"Registry hosts that it is asked for; * stands for any characters. Default: all."`
	Trust      string   `toml:"trust" comment:"none: it is asked only for what the registry gives to everybody. credentials (Dragonfly): it gets the\ncredentials of pulls and those of the node for the registry, and may give private models to everybody in the cluster who knows a digest."`
}

// The values of Mirror.Trust.
const (
	TrustNone        = "none"
	TrustCredentials = "credentials"
)

// IsDragonfly reports whether a mirror is Dragonfly.
func (m Mirror) IsDragonfly() bool { return m.Kind == string(remote.Dragonfly) }

// Peers returns the mirror for a registry client.
func (m Mirror) Peers() remote.Peers {
	return remote.Peers{URL: m.URL, Kind: remote.PeerKind(m.Kind), Trusted: m.Trust == TrustCredentials, For: func(host string) bool {
		return len(m.Registries) == 0 || slices.ContainsFunc(m.Registries, func(p string) bool { return matches(p, host) })
	}}
}

// Fetch configures downloads.
type Fetch struct {
	Connections int      `toml:"connections" comment:"Number of ranges that are downloaded at the same time, for all models together. Distant registries can\nneed more. ballastd holds up to twice as many chunks of 4 MiB in memory."`
	Reserve     Size     `toml:"reserve" comment:"Free space that downloads leave on the file system. A model that does not fit is refused before its\ndownload starts."`
	Linger      Duration `toml:"linger" comment:"How long a download continues after the last client that waited for it has gone. A kubelet that times\nout and tries again then finds the model complete."`
}

// Snapshot configures how models are shown.
type Snapshot struct {
	Show      string `toml:"show" comment:"stubs: metadata files over data-only lower layers (Linux 6.5); links: hard links to the stored files\n(any kernel); auto: stubs if the kernel supports them, otherwise links."`
	ReadAhead string `toml:"read_ahead" comment:"Read the large files of complete models ahead of the programs that load them. on: always; auto: if the\ndisk takes half a millisecond or more for a request, as network volumes do; off: never. The label\nballast.dev/read-ahead of a pod replaces auto and on. Needs Linux 6.5."`
}

// Lazy configures when incomplete models are shown, and how their rest is downloaded.
type Lazy struct {
	Mode            string     `toml:"mode" comment:"When containers can start. auto: at once if the large files have chunk digests, otherwise when the model\nis complete; lazy: at once if the digests of the files are known, and a read of a file without chunk\ndigests waits for the whole file; complete: when the model is complete. Needs stubs and FUSE."`
	KernelReadAhead Size       `toml:"kernel_read_ahead" comment:"Kernel read-ahead for files that are not complete, and around random accesses to their mappings."`
	Rate            Size       `toml:"rate" comment:"Limit for background downloads, in bytes per second. 0: no limit. Reads are never limited."`
	Passthrough     bool       `toml:"passthrough" comment:"Let the kernel read complete files directly, also in mounts that were made before the files were\ncomplete (Linux 6.9)."`
	IDMap           bool       `toml:"idmap" comment:"Let pods in user namespaces read models that are not complete (Linux 6.12). If false, such pods start\nwhen the model is complete. A change takes effect when the lazy mount is made again."`
	Holder          string     `toml:"holder" comment:"What keeps the lazy mount while ballastd is down. auto: \"ballastd holder\", which ballastd-holder.service\nruns; if it does not run, ballastd starts one; process: the same as auto; outside: \"ballastd holder --stay\",\nstarted by something else, as in a container; none: reads of incomplete files fail while ballastd is down."`
	Tables          string     `toml:"tables" comment:"Repository with tables of hash states, such as registry.example/team/tables: what a model has there can be\nread before the model is complete, although it has no chunk digests. Empty: none."`
	TableKeys       []string   `toml:"table_keys" comment:"Files with the public keys (PEM) whose tables are trusted. Who has such a key vouches for what is read of\nmodels before they are complete."`
	TableSign       string     `toml:"table_sign" comment:"File with the private key (PEM) of the tables that ballastd writes into lazy.tables: for the large files of\nmodels that everybody may have and that were downloaded here. Empty: none are written."`
	Rule            []LazyRule `toml:"rule,omitempty" comment:"A mode for some models. Tables in a later file replace all of those in earlier files."`
}

// LazyRule is a mode for some models.
type LazyRule struct {
	Match string `toml:"match" comment:"host, or host/repository; * matches any characters. The first rule that matches applies."`
	Mode  string `toml:"mode" comment:"auto, lazy or complete, as lazy.mode."`
}

// GC configures when unreferenced objects are removed. Until then they stay, so that a model that
// is pulled again is present at once.
type GC struct {
	Interval Duration `toml:"interval" comment:"How often disk usage is checked."`
	High     Percent  `toml:"high" comment:"Disk usage above which unused files are removed, least recently used first. The default is that of\nthe kubelet for images."`
	Low      Percent  `toml:"low" comment:"Disk usage at which removal stops."`
	Quota    Size     `toml:"quota" comment:"Limit for stored files and unfinished downloads together: as high and low, in bytes. 0: no limit.\nFiles in use are never removed."`
}

// Scrub configures how stored files are read again in the background.
type Scrub struct {
	Interval Duration `toml:"interval" comment:"How often each file is compared with its digest. 0: never."`
	Rate     Size     `toml:"rate" comment:"Limit, in bytes per second."`
}

// Metrics configures where metrics are served besides the admin socket.
type Metrics struct {
	Listen string `toml:"listen" comment:"Address of an HTTP server with /metrics, such as \"127.0.0.1:9757\". Empty: none. The admin socket\nalways has /metrics."`
}

// Resolve configures the socket for users who are not root. It shows only public models, and changes nothing.
type Resolve struct {
	Group   string `toml:"group" comment:"Group whose users can ask. Empty: there is no such socket."`
	Address string `toml:"address" comment:"The socket. Its directory is for it only: ballastd gives it to the group."`
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
		Upstream: Upstream{
			HostsDir:     "/etc/ballast/hosts.d",
			DockerConfig: "/root/.docker/config.json",
			Share:        []string{},
			KeepSecrets:  true,
			AllowHosts:   []string{},
			OllamaHosts:  []string{},
			Artifacts:    []string{},
			Offline:      []string{},
			MirrorOnly:   []string{},
			StallTimeout: Duration{30 * time.Second},
		},
		Fetch: Fetch{
			Connections: 8,
			Reserve:     1 << 30, // 1 GiB
			Linger:      Duration{5 * time.Minute},
		},
		Snapshot: Snapshot{Show: ShowAuto, ReadAhead: ReadAheadAuto},
		Lazy:     Lazy{Mode: ModeAuto, KernelReadAhead: 2 << 20, Passthrough: true, IDMap: true, Holder: HolderAuto, TableKeys: []string{}},
		Resolve:  Resolve{Address: "/run/ballast-resolve/resolve.sock"},
		Scrub:    Scrub{Interval: Duration{30 * 24 * time.Hour}, Rate: 20 << 20},
		GC:       GC{Interval: Duration{5 * time.Minute}, High: 85, Low: 80},
	}
}

// The values of Snapshot.Show.
const (
	ShowAuto  = "auto"
	ShowStubs = "stubs"
	ShowLinks = "links"
)

// The values of Snapshot.ReadAhead.
const (
	ReadAheadAuto = "auto"
	ReadAheadOn   = "on"
	ReadAheadOff  = "off"
)

// The values of Lazy.Mode and LazyRule.Mode.
const (
	ModeAuto     = "auto"
	ModeLazy     = "lazy"
	ModeComplete = "complete"
)

// The values of Lazy.Holder.
const (
	HolderAuto    = "auto"
	HolderProcess = "process"
	HolderOutside = "outside"
	HolderNone    = "none"
)

// ModeOf returns the mode for a model from a repository, "host/path".
func (l *Lazy) ModeOf(repository string) string {
	for _, r := range l.Rule {
		if covers(r.Match, repository) {
			return r.Mode
		}
	}
	return l.Mode
}

// MountsTitled reports whether artifacts of a repository, "host/path", are mounted by the titles of
// their layers.
func (u *Upstream) MountsTitled(repository string) bool {
	return slices.ContainsFunc(u.Artifacts, func(p string) bool { return matches(p, repository) })
}

// IsOffline reports whether a registry host is never asked.
func (u *Upstream) IsOffline(host string) bool {
	return slices.ContainsFunc(u.Offline, func(p string) bool { return matches(p, host) })
}

// IsMirrorOnly reports whether only the mirrors of a registry host are asked.
func (u *Upstream) IsMirrorOnly(host string) bool {
	return slices.ContainsFunc(u.MirrorOnly, func(p string) bool { return matches(p, host) })
}

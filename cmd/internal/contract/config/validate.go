package config

import (
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
)

// maxSocketPath limits the path of a unix socket: sun_path has 108 bytes with the final 0, and a
// socket is created under a name with ".new" at its end.
// https://man7.org/linux/man-pages/man7/unix.7.html
const maxSocketPath = 108 - 1 - len(".new")

// maxRoot limits the root, in bytes. The options of one mount(2) must fit into a page together with
// the names of up to 128 snapshots; a long root leaves room for few.
const maxRoot = 512

// validate returns errdefs.ErrInvalidArgument, naming the key, if a value is not valid.
func (c *Config) validate() error {
	err := cmp.Or(checkPath("address", c.Address, maxSocketPath), checkPath("admin_address", c.AdminAddress, maxSocketPath), checkPath("root", c.Root, maxRoot),
		checkPath("resolve.address", c.Resolve.Address, maxSocketPath))
	if err != nil {
		return err
	}
	// A colon in a data-only lower layer cannot be escaped in overlay options.
	if strings.ContainsAny(c.Root, ":,\\ \t\n") {
		return invalid("root", "%q has a character that mount options treat specially", c.Root)
	}
	c.Root = filepath.Clean(c.Root)
	if dir := filepath.Dir(filepath.Clean(c.Resolve.Address)); dir == filepath.Dir(filepath.Clean(c.Address)) || dir == filepath.Dir(filepath.Clean(c.AdminAddress)) {
		return invalid("resolve.address", "%s is beside the sockets for root; use another directory, such as /run/ballast-resolve", c.Resolve.Address)
	}
	if c.Address == c.AdminAddress {
		return invalid("admin_address", "is the same as address")
	}
	return cmp.Or(c.checkDirs(), c.checkListeners(), c.checkClosed(), c.checkCartons(), c.checkValues(), c.checkLazy(), c.checkVerify(), c.checkUpstream(), c.checkLayout())
}

func (c *Config) checkValues() error {
	var level slog.Level
	switch {
	case level.UnmarshalText([]byte(c.Log.Level)) != nil:
		return invalid("log.level", "%q is not one of debug, info, warn, error", c.Log.Level)
	case !slices.Contains([]string{"text", "json"}, c.Log.Format):
		return invalid("log.format", "%q is not text or json", c.Log.Format)
	case !slices.Contains([]string{ShowAuto, ShowStubs, ShowLinks}, c.Snapshot.Show):
		return invalid("snapshot.show", "%q is not one of auto, stubs, links", c.Snapshot.Show)
	case !slices.Contains([]string{ReadAheadAuto, ReadAheadOn, ReadAheadOff}, c.Snapshot.ReadAhead):
		return invalid("snapshot.read_ahead", "%q is not one of auto, on, off", c.Snapshot.ReadAhead)
	case c.Fetch.Connections < 1 || c.Fetch.Connections > 256:
		return invalid("fetch.connections", "%d is not in the range 1 to 256", c.Fetch.Connections)
	case c.Fetch.Linger.Duration < 0:
		return invalid("fetch.linger", "is negative")
	case c.Upstream.OllamaRunner != "" && !slices.Contains(formats.All().Variants(), c.Upstream.OllamaRunner):
		return invalid("upstream.ollama_runner", "%q is not one of %s", c.Upstream.OllamaRunner, strings.Join(formats.All().Variants(), ", "))
	case c.Upstream.StallTimeout.Duration <= 0:
		return invalid("upstream.stall_timeout", "must be above 0")
	case c.Scrub.Interval.Duration < 0:
		return invalid("scrub.interval", "is negative")
	case c.Scrub.Rate < 64<<10:
		return invalid("scrub.rate", "%v is less than 64KiB; scrub.interval = \"0\" turns it off", c.Scrub.Rate)
	case c.GC.Interval.Duration <= 0:
		return invalid("gc.interval", "must be above 0")
	case !c.GC.High.valid(): // a number without a percent sign passes unchecked
		return invalid("gc.high", "%v is not in the range 1%% to 100%%", c.GC.High)
	case !c.GC.Low.valid():
		return invalid("gc.low", "%v is not in the range 1%% to 100%%", c.GC.Low)
	case c.GC.Low > c.GC.High:
		return invalid("gc.low", "%v is above gc.high, %v", c.GC.Low, c.GC.High)
	}
	return nil
}

func (c *Config) checkLayout() error {
	for i, l := range c.Layout {
		key := fmt.Sprintf("layout %d", i+1)
		if l.Match == "" {
			return invalid(key, "match is empty")
		}
		if why := unusual(l.Match); why != "" {
			return invalid(key, "match %q stands for nothing: names have %s", l.Match, why)
		}
		if _, err := filetable.CleanPrefix(l.Prefix); err != nil {
			return invalid(key, "prefix: %v", err)
		}
	}
	return nil
}

func (c *Config) checkUpstream() error {
	for i, p := range c.Upstream.Artifacts {
		key := fmt.Sprintf("upstream.artifacts %d", i+1)
		if p == "" {
			return invalid(key, "is empty")
		}
		if why := unusual(p); why != "" {
			return invalid(key, "%q stands for nothing: names have %s", p, why)
		}
	}
	for key, hosts := range map[string][]string{"upstream.offline": c.Upstream.Offline, "upstream.mirror_only": c.Upstream.MirrorOnly} {
		for i, h := range hosts {
			if h == "" || strings.Contains(h, "/") {
				return invalid(fmt.Sprintf("%s %d", key, i+1), "%q is not a host as in a reference, such as \"registry.example\"", h)
			}
		}
	}
	for i, m := range c.Mirror {
		if !slices.Contains([]string{"", TrustNone, TrustCredentials}, m.Trust) {
			return invalid(fmt.Sprintf("mirror %d", i+1), "trust: %q is not none or credentials", m.Trust)
		}
		if err := m.Peers().Check(); err != nil {
			return invalid(fmt.Sprintf("mirror %d", i+1), "%v", err)
		}
	}
	if (c.Upstream.ProviderFile == "") != (c.Upstream.ProviderDir == "") {
		return invalid("upstream.credential_provider_config", "goes with upstream.credential_provider_dir")
	}
	for _, h := range c.Upstream.AllowHosts {
		if err := checkAllowed(h); err != nil {
			return err
		}
	}
	for _, h := range c.Upstream.Share {
		if !registryHost.MatchString(h) {
			return invalid("upstream.share_credentials", "%q is not a host as in a reference, such as \"registry.example\"", h)
		}
	}
	for _, s := range []struct{ key, path string }{
		{"upstream.hosts_dir", c.Upstream.HostsDir}, {"upstream.docker_config", c.Upstream.DockerConfig},
		{"upstream.credential_provider_config", c.Upstream.ProviderFile}, {"upstream.credential_provider_dir", c.Upstream.ProviderDir},
		{"containerd.address", c.Containerd.Address},
	} {
		if s.path != "" && !filepath.IsAbs(s.path) {
			return invalid(s.key, "%q is not an absolute path", s.path)
		}
	}
	return nil
}

// maxReadAhead limits the read-ahead: a random access downloads as much.
const maxReadAhead = 64 << 20

func (c *Config) checkLazy() error {
	modes := []string{ModeAuto, ModeLazy, ModeComplete}
	switch l := c.Lazy; {
	case !slices.Contains(modes, l.Mode):
		return invalid("lazy.mode", "%q is not one of auto, lazy, complete", l.Mode)
	case !slices.Contains([]string{HolderAuto, HolderProcess, HolderOutside, HolderNone}, l.Holder):
		return invalid("lazy.holder", "%q is not one of auto, process, outside, none", l.Holder)
	case l.KernelReadAhead < 128<<10 || l.KernelReadAhead > maxReadAhead:
		return invalid("lazy.kernel_read_ahead", "%v is not in the range 128KiB to 64MiB", l.KernelReadAhead)
	case l.Rate < 0:
		return invalid("lazy.rate", "is negative")
	}
	if err := c.Lazy.checkTables(); err != nil {
		return err
	}
	for i, r := range c.Lazy.Rule {
		switch {
		case r.Match == "":
			return invalid(fmt.Sprintf("lazy.rule %d", i+1), "match is empty")
		case !slices.Contains(modes, r.Mode):
			return invalid(fmt.Sprintf("lazy.rule %d", i+1), "mode %q is not one of auto, lazy, complete", r.Mode)
		}
	}
	return nil
}

// checkTables checks the settings of tables of hash states, without reading keys.
func (l *Lazy) checkTables() error {
	used := len(l.TableKeys) > 0 || l.TableSign != ""
	switch ref, err := remote.ParseRef(l.Tables); {
	case l.Tables == "" && used:
		return invalid("lazy.tables", "is empty, but table_keys or table_sign is set: name the repository with the tables")
	case l.Tables == "":
		return nil
	case err != nil:
		return invalid("lazy.tables", "%v", err)
	case l.Tables != ref.Name():
		return invalid("lazy.tables", "%q is not a repository, such as registry.example/team/tables: host and path, without tag and digest", l.Tables)
	case !used:
		return invalid("lazy.tables", "is not used without table_keys, whose tables are trusted, or table_sign, which signs those of this node")
	}
	for _, file := range append(slices.Clone(l.TableKeys), l.TableSign) {
		if file != "" && !filepath.IsAbs(file) {
			return invalid("lazy.table_keys, lazy.table_sign", "%q is not an absolute path", file)
		}
	}
	return nil
}

func (c *Config) checkListeners() error {
	if c.Facade.Listen != "" {
		host, _, err := net.SplitHostPort(c.Facade.Listen)
		if err != nil {
			return invalid("facade.listen", "%v", err)
		}
		if ip := net.ParseIP(host); !c.Facade.AllowRemote && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return invalid("facade.listen", "%s can be reached by other machines; set facade.allow_remote = true if you want that", c.Facade.Listen)
		}
		if c.Facade.InsecurePlainHTTP && c.Facade.AllowRemote {
			return invalid("facade.insecure_plain_http", "is for tests on one machine, and facade.allow_remote is set")
		}
	}
	if c.Metrics.Listen != "" {
		if _, _, err := net.SplitHostPort(c.Metrics.Listen); err != nil {
			return invalid("metrics.listen", "%v", err)
		}
	}
	return nil
}

// The limits of facade.closed: ballastd watches three directories for each file.
const (
	maxClosed    = 1000
	maxHostsPath = 4096 // PATH_MAX
)

func (c *Config) checkClosed() error {
	if n := len(c.Facade.Closed); n > maxClosed {
		return invalid("facade.closed", "%d tables are more than %d", n, maxClosed)
	}
	for i, f := range c.Facade.Closed {
		key := fmt.Sprintf("facade.closed %d: ", i+1)
		if err := checkPath(key+"file", f.File, maxHostsPath); err != nil {
			return err
		}
		if f.File != filepath.Clean(f.File) || filepath.Base(f.File) != "hosts.toml" || strings.Contains(f.File, "\x00") {
			return invalid(key+"file", "%q is not the path of a hosts.toml", f.File)
		}
		if _, err := verify.ParseDigest(f.Digest.String()); err != nil {
			return invalid(key+"digest", "%.100q is not \"sha256:\" and a checksum", f.Digest)
		}
	}
	return nil
}

// allowedHost matches a host name, or an IPv6 address in brackets, with an optional port.
var allowedHost = regexp.MustCompile(`^([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`)

// checkAllowed checks an entry of upstream.allow_hosts.
func checkAllowed(h string) error {
	const key = "upstream.allow_hosts"
	if strings.Contains(h, "/") && !strings.Contains(h, "://") {
		if _, err := netip.ParsePrefix(h); err != nil {
			return invalid(key, "%q is not a network such as 10.0.0.0/8", h)
		}
		return nil
	}
	if _, err := netip.ParseAddr(h); err == nil {
		return nil
	}
	name, _, _ := strings.Cut(h, ":")
	number := strings.Trim(name, "0123456789.") == "" // as an IPv4 address
	if !allowedHost.MatchString(h) || name != "" && number && net.ParseIP(name) == nil {
		return invalid(key, "%q is not a host, host:port, address or network", h)
	}
	return nil
}

func checkPath(key, path string, limit int) error {
	switch {
	case !filepath.IsAbs(path):
		return invalid(key, "%q is not an absolute path", path)
	case len(path) > limit:
		return invalid(key, "%q has %d bytes, more than %d", path, len(path), limit)
	}
	return nil
}

func invalid(key, format string, a ...any) error {
	return fmt.Errorf("configuration: %s: %s: %w", key, fmt.Sprintf(format, a...), errdefs.ErrInvalidArgument)
}

package credentialprovider

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/convert/hostname"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/singleflight"
)

// Limits of a plugin.
const (
	runTime   = time.Minute    // as the kubelet's
	maxAnswer = 64 << 10       // bytes
	maxText   = 1 << 10        // bytes of its errors
	maxCache  = 24 * time.Hour // for which an answer is used
	maxCached = 256            // answers
)

// Providers are the plugins of a configuration file. They are safe for concurrent use.
type Providers struct {
	config, dir string
	runTime     time.Duration
	calls       singleflight.Group

	mu     sync.Mutex // guards cached
	cached map[string]answer
}

// New returns the plugins that a configuration file of the kubelet lists, whose programs are in dir.
func New(config, dir string) *Providers {
	return &Providers{config: config, dir: dir, runTime: runTime, cached: map[string]answer{}}
}

// A plugin is an entry of the configuration file.
type plugin struct {
	Name       string   `yaml:"name"`
	APIVersion string   `yaml:"apiVersion"`
	Match      []string `yaml:"matchImages"`
	Cache      string   `yaml:"defaultCacheDuration"`
	Args       []string `yaml:"args"`
	Env        []struct {
		Name  string `yaml:"name"`
		Value string `yaml:"value"`
	} `yaml:"env"`
	Token *struct {
		Required bool `yaml:"requireServiceAccount"`
	} `yaml:"tokenAttributes"`
}

// A message is a request or a response of a plugin.
type message struct {
	APIVersion string           `json:"apiVersion"`
	Kind       string           `json:"kind"`
	Image      string           `json:"image,omitempty"`
	KeyType    string           `json:"cacheKeyType,omitempty"`
	Duration   *string          `json:"cacheDuration,omitempty"`
	Auth       map[string]login `json:"auth,omitempty"`
}

type login struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

// An answer is a response that is used until a time.
type answer struct {
	auth  map[string]login
	until time.Time
}

// Credentials returns the credentials of the first plugin that has some for a repository, or the zero value. It is for
// remote.Options.Credentials.
func (p *Providers) Credentials(host, repository string) (remote.Credentials, error) {
	b, err := os.ReadFile(p.config)
	if err != nil {
		return remote.Credentials{}, fmt.Errorf("credential providers: %w", err)
	}
	var list struct {
		Providers []plugin `yaml:"providers"`
	}
	if yaml.Unmarshal(b, &list) != nil { // its text can contain a part of the file
		return remote.Credentials{}, fmt.Errorf("credential providers: %s is no list of plugins: %w", p.config, errdefs.ErrInvalidArgument)
	}
	host = hostname.Normal(host)
	for _, g := range list.Providers {
		if len(hostname.Entries(slices.Values(g.Match), host, repository)) == 0 || g.Token != nil && g.Token.Required {
			continue
		}
		auth, err := p.ask(g, host, repository)
		if err != nil {
			return remote.Credentials{}, fmt.Errorf("credential provider %s for %s/%s: %w", g.Name, host, repository, err)
		}
		for _, key := range hostname.Entries(maps.Keys(auth), host, repository) {
			if l := auth[key]; l != (login{}) {
				return remote.Credentials{Username: l.Username, Secret: l.Password}, nil
			}
		}
	}
	return remote.Credentials{}, nil
}

// ask returns the answer of a plugin, the last one if it may still be used.
func (p *Providers) ask(g plugin, host, repository string) (map[string]login, error) {
	image := host + "/" + repository
	keys := map[string]string{"Image": image, "Registry": host, "Global": ""}
	p.mu.Lock()
	for _, kind := range []string{"Image", "Registry", "Global"} { // in the order of the kubelet
		if a := p.cached[g.Name+" "+kind+" "+keys[kind]]; time.Now().Before(a.until) {
			p.mu.Unlock()
			return a.auth, nil
		}
	}
	p.mu.Unlock()
	v, err, _ := p.calls.Do(g.Name+" "+image, func() (any, error) {
		m, err := p.run(g, image)
		if err != nil {
			return nil, err
		}
		key, ok := keys[m.KeyType]
		if !ok {
			return nil, fmt.Errorf("cacheKeyType %.20q: %w", m.KeyType, errdefs.ErrInvalidArgument)
		}
		text := g.Cache
		if m.Duration != nil {
			text = *m.Duration
		}
		use, err := time.ParseDuration(text)
		if err != nil && text != "" {
			return nil, fmt.Errorf("cacheDuration %.40q: %w", text, errdefs.ErrInvalidArgument)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.cached) >= maxCached {
			clear(p.cached)
		}
		p.cached[g.Name+" "+m.KeyType+" "+key] = answer{m.Auth, time.Now().Add(min(use, maxCache))}
		return m.Auth, nil
	})
	if err != nil {
		return nil, err
	}
	return v.(map[string]login), nil
}

// run runs a plugin for an image.
func (p *Providers) run(g plugin, image string) (m message, err error) {
	if g.Name == "" || strings.ContainsAny(g.Name, `/\ `) || strings.Trim(g.Name, ".") == "" {
		return m, fmt.Errorf("it is not the plain name of a program: %w", errdefs.ErrInvalidArgument)
	}
	request, err := json.Marshal(message{APIVersion: g.APIVersion, Kind: "CredentialProviderRequest", Image: image})
	if err != nil {
		return m, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.runTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(p.dir, g.Name), g.Args...)
	cmd.WaitDelay = time.Second // for processes that it has started, and which keep its output open
	cmd.Env = cmd.Environ()
	for _, e := range g.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	out, text := &limited{left: maxAnswer, strict: true}, &limited{left: maxText}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(request), out, text
	err = cmd.Run()
	switch {
	case ctx.Err() != nil:
		return m, fmt.Errorf("no answer within %s: %w", p.runTime, errdefs.ErrUnavailable)
	case out.left < 0:
		return m, fmt.Errorf("an answer of more than %d bytes: %w", maxAnswer, errdefs.ErrInvalidArgument)
	case err != nil:
		return m, fmt.Errorf("%w: %q", err, text.b.String())
	}
	if json.Unmarshal(out.b.Bytes(), &m) != nil || m.Kind != "CredentialProviderResponse" || m.APIVersion != g.APIVersion {
		return m, fmt.Errorf("its answer is no CredentialProviderResponse of %.60q: %w", g.APIVersion, errdefs.ErrInvalidArgument) // without its content
	}
	return m, nil
}

// limited keeps the beginning of what is written to it. left is negative if there was more, which ends a strict one.
type limited struct {
	b      bytes.Buffer
	left   int
	strict bool
}

func (l *limited) Write(p []byte) (int, error) {
	l.b.Write(p[:max(0, min(len(p), l.left))])
	if l.left -= min(len(p), l.left+1); l.left < 0 && l.strict {
		return 0, errdefs.ErrOutOfRange
	}
	return len(p), nil
}

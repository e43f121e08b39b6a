package huggingface

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
)

// Format parses references of the form "hf:ORG/REPO[@REVISION]", and serves those with hosts of the
// Hub as ModelPack.
var Format = format.Format{Prefix: "hf:", Ref: parseRef, Hosts: hosts, Page: page}

func parseRef(rest string) (remote.Ref, error) {
	repository, revision, pinned := strings.Cut(rest, "@")
	if !pinned {
		revision = mainBranch
	}
	return remote.NewRef(Host, repository, revision)
}

// page returns the reference of https://huggingface.co/ORG/REPO[/tree/REVISION].
func page(host string, path []string) (string, error) {
	if host != Host && host != "huggingface.co" {
		return "", nil
	}
	if len(path) < 2 || slices.Contains([]string{"datasets", "spaces", "collections", "docs", "papers"}, path[0]) {
		return "", fmt.Errorf("a page of the Hub that is not the page of a model; write hf:ORG/REPO: %w", errdefs.ErrInvalidArgument)
	}
	repository := path[0] + "/" + path[1]
	switch {
	case len(path) == 2:
		return Host + "/" + repository + ":" + mainBranch, nil
	case path[2] == "tree" && len(path) == 4:
		return Host + "/" + repository + ":" + path[3], nil
	case len(path) > 4 && path[2] == "tree":
		return "", part("directory", repository, path[3], strings.Join(path[4:], "/")+"/")
	case len(path) > 4:
		return "", part("file", repository, path[3], strings.Join(path[4:], "/"))
	}
	return "", fmt.Errorf("a page about a model; write hf:%s for the model: %w", repository, errdefs.ErrInvalidArgument)
}

// part returns the error for the page of a part of a repository.
func part(what, repository, revision, path string) error {
	return fmt.Errorf("one %s of a repository; write hf:%s@%s for the repository; convert and inspect --remote take --include '%s' too: %w",
		what, repository, revision, path, errdefs.ErrInvalidArgument)
}

// hosts returns the Hub, whose endpoint HF_ENDPOINT can change, with the token of the environment
// as that of the node. The token is read for each use, because other programs renew it.
func hosts(s format.Settings) (format.Hosts, error) {
	getenv := s.Getenv
	if getenv == nil {
		getenv = func(string) string { return "" }
	}
	hub, err := New(cmp.Or(getenv("HF_ENDPOINT"), DefaultEndpoint))
	if err != nil {
		return format.Hosts{}, fmt.Errorf("HF_ENDPOINT: %w", err)
	}
	return format.Hosts{Names: []string{Host}, Dialect: hub, Credentials: func() remote.Credentials { return Credentials(token(getenv)) }}, nil
}

// maxToken limits a file with a token, in bytes.
const maxToken = 4 << 10

// token returns the token in HF_TOKEN, otherwise in the file HF_TOKEN_PATH, otherwise in the file
// token below HF_HOME, whose default is ~/.cache/huggingface. A file that cannot be read has no
// token.
// https://huggingface.co/docs/huggingface_hub/v1.2.0/en/package_reference/environment_variables
func token(getenv func(string) string) string {
	if t := strings.TrimSpace(getenv("HF_TOKEN")); t != "" {
		return t
	}
	file := getenv("HF_TOKEN_PATH")
	if file == "" {
		home, err := os.UserHomeDir()
		cache := cmp.Or(getenv("XDG_CACHE_HOME"), filepath.Join(home, ".cache"))
		dir := cmp.Or(getenv("HF_HOME"), filepath.Join(cache, "huggingface"))
		if err != nil && !filepath.IsAbs(dir) {
			return ""
		}
		file = filepath.Join(dir, "token")
	}
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	p, err := io.ReadAll(io.LimitReader(f, maxToken))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(p))
}

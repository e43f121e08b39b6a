package config

import (
	"cmp"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// maxToken is the longest file with a token that is read, in bytes.
const maxToken = 4 << 10

// A HubAccess is what the environment says about the Hub of Hugging Face.
// https://huggingface.co/docs/huggingface_hub/v1.2.0/en/package_reference/environment_variables
type HubAccess struct {
	Endpoint string // HF_ENDPOINT; can be empty
	Token    string // can be empty
}

// Hub reads the environment: HF_ENDPOINT, and a token from HF_TOKEN, else from the file HF_TOKEN_PATH, else from
// the file token below HF_HOME, which is ~/.cache/huggingface if it is not set. A file that can not be read has
// no token.
func Hub() HubAccess {
	h := HubAccess{Endpoint: os.Getenv("HF_ENDPOINT"), Token: strings.TrimSpace(os.Getenv("HF_TOKEN"))}
	if h.Token != "" {
		return h
	}
	file := os.Getenv("HF_TOKEN_PATH")
	if file == "" {
		home, err := os.UserHomeDir()
		cache := cmp.Or(os.Getenv("XDG_CACHE_HOME"), filepath.Join(home, ".cache"))
		dir := cmp.Or(os.Getenv("HF_HOME"), filepath.Join(cache, "huggingface"))
		if err != nil && !filepath.IsAbs(dir) {
			return h
		}
		file = filepath.Join(dir, "token")
	}
	f, err := os.Open(file)
	if err != nil {
		return h
	}
	defer f.Close()
	if p, err := io.ReadAll(io.LimitReader(f, maxToken)); err == nil {
		h.Token = strings.TrimSpace(string(p))
	}
	return h
}

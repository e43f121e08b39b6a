package localstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ballast-dev/ballast/convert/format"
	"github.com/containerd/errdefs"
)

// Scheme is the prefix of names of models in a local Ollama.
const Scheme = "ollama:"

// Place opens ollama:[DIR:]MODEL.
var Place = format.Place{
	Takes: func(n format.Name) bool { return strings.HasPrefix(n.Text, Scheme) },
	Open:  open,
}

func open(_ context.Context, s format.Settings, name string) (*format.Source, error) {
	dir, model := split(strings.TrimPrefix(name, Scheme))
	if _, err := ParseName(model); err != nil {
		return nil, &format.NameError{Err: err}
	}
	dir, err := Dir(s.Getenv, dir, "ollama:DIR:"+model)
	if err != nil {
		return nil, err
	}
	models, err := Open(dir)
	if err != nil {
		return nil, err
	}
	a, err := models.Artifact(model)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), models.Close())
	}
	return &format.Source{
		Artifact: a, Fetcher: models, Close: models.Close, Explain: func(err error) error { return models.Explain(a.Name(), err) },
	}, nil
}

// split splits [DIR:]MODEL. A directory begins with / or . and can have colons, if the store
// exists; so can MODEL.
func split(s string) (dir, model string) {
	if !strings.HasPrefix(s, "/") && !strings.HasPrefix(s, ".") {
		return "", s
	}
	for i := 0; i < len(s); i++ {
		if s[i] != ':' {
			continue
		}
		if _, err := os.Stat(filepath.Join(s[:i], "blobs")); err == nil {
			return s[:i], s[i+1:]
		}
	}
	dir, model, _ = strings.Cut(s, ":")
	return dir, model
}

// serviceDir is the models directory of Ollama's service.
// https://github.com/ollama/ollama/blob/v0.12.0/docs/faq.md#where-are-models-stored
const serviceDir = "/usr/share/ollama/.ollama/models"

// Dir returns the absolute directory of Ollama's models: dir if not empty, then $OLLAMA_MODELS,
// then that of the user, then that of the service. It returns errdefs.ErrNotFound if neither of the
// last two exists, with the advice to use how, or $OLLAMA_MODELS.
func Dir(getenv func(string) string, dir, how string) (string, error) {
	if dir == "" && getenv != nil {
		dir = getenv("OLLAMA_MODELS")
	}
	if dir != "" {
		return filepath.Abs(dir)
	}
	var places []string
	if home, err := os.UserHomeDir(); err == nil {
		places = append(places, filepath.Join(home, ".ollama", "models"))
	}
	places = append(places, serviceDir)
	for _, dir := range places {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return filepath.Abs(dir)
		}
	}
	return "", fmt.Errorf("no models of Ollama in %s; name the directory with %s or $OLLAMA_MODELS: %w", strings.Join(places, " or "), how, errdefs.ErrNotFound)
}

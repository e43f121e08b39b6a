package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
)

// ollamaService is where Ollama's service keeps models.
// https://github.com/ollama/ollama/blob/v0.12.0/docs/faq.md#where-are-models-stored
const ollamaService = "/usr/share/ollama/.ollama/models"

// OllamaModels returns the absolute directory of Ollama's models: flag if not empty, then
// $OLLAMA_MODELS, then that of the user, then that of the service. It returns
// errdefs.ErrNotFound if none of the last two is there, and says to use how, or $OLLAMA_MODELS.
func OllamaModels(flag, how string) (string, error) {
	if flag != "" {
		return filepath.Abs(flag)
	}
	if s := os.Getenv("OLLAMA_MODELS"); s != "" {
		return filepath.Abs(s)
	}
	var places []string
	if home, err := os.UserHomeDir(); err == nil {
		places = append(places, filepath.Join(home, ".ollama", "models"))
	}
	places = append(places, ollamaService)
	for _, dir := range places {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return filepath.Abs(dir)
		}
	}
	return "", fmt.Errorf("no models of Ollama in %s; name the directory with %s or $OLLAMA_MODELS: %w", strings.Join(places, " or "), how, errdefs.ErrNotFound)
}

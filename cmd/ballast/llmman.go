package main

import (
	"encoding/json"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/containerd/errdefs"
)

// llmmanProgram is a link to ballast that answers "resolve" as llmman does, for engines that run llmman to find
// models.
// https://github.com/llmmanorg/llmman/blob/485d055cc7b8640ca376149004fe3579e132a41c/src/cmd/resolve.rs
const llmmanProgram = "llmman"

// llmmanArgs returns the arguments of ballast for those of llmmanProgram. Another command of llmman must not run the
// command of ballast with its name.
func llmmanArgs(args []string) []string {
	switch {
	case len(args) == 0, args[0] == "--version", args[0] == "--help":
		return args
	case args[0] != "resolve":
		return append([]string{llmmanProgram}, args...) // which is no command, as the error says
	}
	rest := slices.DeleteFunc(slices.Clone(args[1:]), func(s string) bool { return s == "--no-pull" }) // resolve never does
	return append([]string{"resolve", "--llmman"}, rest...)
}

// The formats of an engineModel.
const (
	engineGGUF        = "gguf"
	engineSafetensors = "safetensors"
)

// An engineModel is the answer of "llmman resolve", one line of JSON.
type engineModel struct {
	Reference string `json:"reference"`
	Path      string `json:"path"` // a directory, or the first GGUF file
	Format    string `json:"format"`
}

// printEngineModel prints where a model is in the form of llmman.
func (a *app) printEngineModel(m wire.Resolved) error {
	e, err := engineModelOf(m)
	if err != nil {
		return err
	}
	return json.NewEncoder(a.stdout).Encode(e)
}

var (
	// shardOfGGUF matches what llama.cpp appends to the name of the first of several files, and to the others.
	shardOfGGUF = regexp.MustCompile(`(?i)-(\d{5})-of-\d{5}\.gguf$`)
	// besideGGUF matches the names of GGUF files that are no model: projectors, adapters and draft models of Ollama.
	besideGGUF = regexp.MustCompile(`(?i)mmproj|^adapter(-\d+)?\.gguf$|^draft\.gguf$`)
)

// engineModelOf returns what an engine loads of a model: its GGUF file, as in llmman also beside safetensors, or the
// directory of its safetensors.
func engineModelOf(m wire.Resolved) (engineModel, error) {
	var ggufs, weights []string
	for _, f := range m.Files {
		name := path.Base(f.Path)
		switch ext := strings.ToLower(path.Ext(name)); {
		case ext == ".safetensors":
			weights = append(weights, path.Dir(f.Path))
		case ext != ".gguf" || besideGGUF.MatchString(name):
		default:
			if s := shardOfGGUF.FindStringSubmatch(name); s == nil || s[1] == "00001" {
				ggufs = append(ggufs, f.Path)
			}
		}
	}
	at := func(p, format string) (engineModel, error) {
		return engineModel{m.Ref, filepath.Join(m.Path, p), format}, nil
	}
	switch {
	case len(ggufs) == 1:
		return at(ggufs[0], engineGGUF)
	case len(weights) > 0:
		return at(engineDir(m.Files, weights), engineSafetensors)
	case len(ggufs) > 1:
		return engineModel{}, fmt.Errorf("%s has %d models in GGUF (%s and %s are two), of which llmman's form can name one; \"ballast resolve %s -o json\" lists the files: %w",
			m.Ref, len(ggufs), ggufs[0], ggufs[1], m.Ref, errdefs.ErrNotImplemented)
	}
	return engineModel{}, fmt.Errorf("%s has no file in GGUF or safetensors, the formats that llmman's form can name: %w", m.Ref, errdefs.ErrNotImplemented)
}

// engineDir returns the directory that an engine loads: that of the model, unless config.json and safetensors are in
// one other directory. weights are the directories of the safetensors.
func engineDir(files []wire.ResolvedFile, weights []string) string {
	var dirs []string
	for _, f := range files {
		dir := path.Dir(f.Path)
		switch path.Base(f.Path) {
		case "model_index.json": // of Diffusers: each part has its own config.json
			if dir == "." {
				return "."
			}
		case "config.json":
			if slices.Contains(weights, dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	if len(dirs) == 1 && !slices.Contains(weights, ".") {
		return dirs[0]
	}
	return "."
}

package converttest

import (
	"encoding/json"
	"maps"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/opencontainers/go-digest"
)

// A ListEntry is an entry of an Ollama manifest list.
type ListEntry struct {
	Built  *Built
	Runner string
	Format string
	Inline bool // the manifest itself is in the list
}

// OllamaList makes a manifest list. Its blobs are those of all entries, and their manifests;
// its files are those of the entry with the given number, and the list.
func OllamaList(chosen int, entries ...ListEntry) *Built {
	b := &Built{
		Name: "ollama-list", Format: mediatype.FormatOllamaList, MediaType: mediatype.OllamaManifestList,
		Blobs: map[digest.Digest][]byte{}, Files: maps.Clone(entries[chosen].Built.Files),
	}
	type ref struct {
		MediaType string        `json:"mediaType"`
		Digest    digest.Digest `json:"digest"`
		Runner    string        `json:"runner,omitempty"`
		Format    string        `json:"format,omitempty"`
	}
	var list []any
	for _, e := range entries {
		maps.Copy(b.Blobs, e.Built.Blobs)
		if e.Inline {
			list = append(list, json.RawMessage(e.Built.Manifest))
			continue
		}
		d := e.Built.Digest()
		b.Blobs[d] = e.Built.Manifest
		list = append(list, ref{mediatype.DockerManifest, d, e.Runner, e.Format})
	}
	b.Manifest = mustJSON(map[string]any{"schemaVersion": 2, "mediaType": mediatype.OllamaManifestList, "manifests": list})
	b.Files["ollama/list.json"] = File{"ollama/list.json", b.Manifest, 0o644}
	return b
}

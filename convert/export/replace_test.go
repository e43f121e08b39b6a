package export_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
)

// TestKeepsTags checks which tags are replaced: those that ballast wrote, if they are not the
// source.
func TestKeepsTags(t *testing.T) {
	s := registrytest.New(t)
	c := client(t, remote.Credentials{})
	model := converttest.ModelPackRaw(converttest.Files(weights(5000)))
	author, other := s.Add("team/model", "v1", model), s.Add("team/other", "v1", converttest.Ollama(converttest.Files(weights(600)), converttest.OllamaConfigOld))
	ours := s.Host() + "/team/model:ours"
	run := func(from, to string, choice convert.Choice, o export.Options) error {
		t.Helper()
		src := fromServer(t, c, from)
		defer src.Close()
		if err := src.Choose(t.Context(), choice); err != nil {
			t.Fatal(err)
		}
		_, err := export.Run(t.Context(), src, toServer(t, c, to), o)
		return err
	}
	packed, some := export.Options{Form: export.FormModelPack}, convert.Choice{Exclude: []string{"*.md"}}
	for _, tt := range []struct {
		name, from, to string
		choice         convert.Choice
		o              export.Options
		refused        bool
	}{
		{"the source", author, author, convert.Choice{}, export.Options{}, true},
		{"a dry run", author, author, convert.Choice{}, export.Options{DryRun: true}, true},
		{"the source, by its digest", s.Host() + "/team/model@" + model.Digest().String(), author, convert.Choice{}, export.Options{}, true},
		{"the source, in part", author, author, some, packed, true},
		{"another model", author, other, convert.Choice{}, export.Options{}, true},
		{"a new tag", author, ours, convert.Choice{}, export.Options{}, false},
		{"the same again", author, ours, convert.Choice{}, export.Options{}, false},
		{"another form", author, ours, convert.Choice{}, packed, false},
		{"another model's conversion", other, ours, convert.Choice{}, export.Options{}, false},
		{"a converted source", ours, ours, convert.Choice{}, packed, true},
		{"a converted source, in part", ours, ours, some, packed, true},
		{"by force", author, other, convert.Choice{}, export.Options{Force: true}, false},
	} {
		repository, tag, _ := strings.Cut(strings.TrimPrefix(tt.to, s.Host()+"/"), ":")
		before := s.Manifest(repository, tag)
		s.Count("")
		err := run(tt.from, tt.to, tt.choice, tt.o)
		if tt.refused != errdefs.IsAlreadyExists(err) || !tt.refused && err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if after := s.Manifest(repository, tag); tt.refused && (!bytes.Equal(before, after) || s.Count("P") > 0) {
			t.Errorf("%s: it was written", tt.name)
		}
	}
}

// TestTagOfOthersMeanwhile checks that a tag that appears while blobs are sent is kept.
func TestTagOfOthersMeanwhile(t *testing.T) {
	s := registrytest.New(t)
	c := client(t, remote.Credentials{})
	src := fromServer(t, c, s.Add("team/model", "v1", converttest.ModelPackRaw(converttest.Files(weights(5000)))))
	defer src.Close()
	theirs := converttest.ModelPackRaw(converttest.Files(weights(600)))
	o := export.Options{Progress: func([]store.Progress) { s.Add("team/new", "v1", theirs) }}
	if _, err := export.Run(t.Context(), src, toServer(t, c, s.Host()+"/team/new:v1"), o); !errdefs.IsAlreadyExists(err) {
		t.Errorf("got %v", err)
	}
	if !bytes.Equal(s.Manifest("team/new", "v1"), theirs.Manifest) {
		t.Error("it was replaced")
	}
}

// TestKeepsTagsOfLayouts checks that a layout is recognised by any of its names.
func TestKeepsTagsOfLayouts(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"m/a.gguf": "weights", "l": "→layout"})
	first, err := new(resolve.Resolver).Open(t.Context(), dir+"/m")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	convertTo := func(src *resolve.Source, name string) error {
		_, err := export.Run(context.Background(), src, toLayout(t, dir+name, "1"), export.Options{Form: export.FormModelPack})
		return err
	}
	if err := convertTo(first, "/layout"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{dir + "/layout", "oci:" + dir + "/layout", "oci:" + dir + "/./l:1"} {
		src, err := new(resolve.Resolver).Open(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		defer src.Close()
		if err := convertTo(src, "/layout"); !errdefs.IsAlreadyExists(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

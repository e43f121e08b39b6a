package registry_test

import (
	"fmt"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/remote"
)

// BenchmarkConvert resolves a tag of a model with 256 layers that was never converted, with a
// registry on loopback: two requests upstream are in it.
func BenchmarkConvert(b *testing.B) {
	u, ref := benchUpstream(b)
	f := newFacade(b, remote.Options{})
	for b.Loop() {
		im, err := f.h.Convert(b.Context(), ref)
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := f.h.Store.Catalog.RemoveImage(im.Manifest); err != nil {
			b.Fatal(err)
		}
		u.Count("")
		b.StartTimer()
	}
}

// BenchmarkConvertKnown resolves the tag of a model that was converted before.
func BenchmarkConvertKnown(b *testing.B) {
	_, ref := benchUpstream(b)
	f := newFacade(b, remote.Options{})
	if _, err := f.h.Convert(b.Context(), ref); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := f.h.Convert(b.Context(), ref); err != nil {
			b.Fatal(err)
		}
	}
}

func benchUpstream(b *testing.B) (*upstream, remote.Ref) {
	b.Helper()
	var files []converttest.File
	for i := range 256 {
		files = append(files, converttest.File{Path: fmt.Sprintf("model-%05d-of-00256.safetensors", i+1), Data: fmt.Appendf(nil, "weights %d", i), Mode: 0o644})
	}
	u := newUpstream(b)
	u.Add("org/model", "v1", converttest.ModelPackRaw(files))
	ref, err := remote.NewRef(u.Host(), "org/model", "v1")
	if err != nil {
		b.Fatal(err)
	}
	return u, ref
}

package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
)

// crawl limits the link so that a model of tens of MiB takes much longer than the start of a container.
func crawl(n *node.Node) { n.Registry.Wire.Link(4<<20, 20*time.Millisecond) }

// TestLazyFormats reads models of every format by chunks, the end first: from the artifact, and from
// the registry after conversion.
func TestLazyFormats(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	seed := byte(130)
	models := func() []converttest.File {
		seed++
		return converttest.Files(append(weights(seed, 20<<20+5), make([]byte, 100_000)...))
	}
	for _, format := range converttest.ChunkedFormats {
		b := converttest.ModelPackChunked(models(), format, 1<<20)
		t.Run("facade-"+string(format), func(t *testing.T) { lazyFormat(t, n, b, push(t, n, b)) })
		c := converttest.ModelPackChunked(models(), format, 1<<20)
		t.Run("converted-"+string(format), func(t *testing.T) { lazyFormat(t, n, c, convertedModel(t, n, c)) })
	}
	for name, b := range map[string]*converttest.Built{
		"raw": converttest.ModelPackRaw(models()), "tar": converttest.ModelPackTar(models()),
	} {
		t.Run(name, func(t *testing.T) { lazyFormat(t, n, b, convertedModel(t, n, b)) })
	}
	for _, how := range []string{"zstd-seekable", "zstd-chunked"} {
		b := converttest.ModelPackRaw(models())
		t.Run(how, func(t *testing.T) { lazyFormat(t, n, b, convertedModel(t, n, b, "--compress", how)) })
	}
}

func lazyFormat(t *testing.T, n *node.Node, b *converttest.Built, ref string) {
	big := b.Files["model.gguf"].Data
	slow(n)
	pause(t, n)
	start := time.Now()
	mustPull(t, n, "ballast", ref)
	pulled := time.Since(start)
	dir := rootOf(t, n, ref)
	started := time.Since(start)
	m := &lazyModel{node: n, ref: ref, want: big, path: filepath.Join(dir, "model.gguf")}
	if err := m.read(len(big)-200_000, 200_000); err != nil {
		t.Errorf("end of the largest file: %v", err)
	}
	t.Logf("pulled after %v, started after %v, end read after %v", pulled, started, time.Since(start))
	if m.complete() {
		t.Error("the file was complete before its end was read")
	}
	resume(t, n)
	for name, f := range b.Files {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || digest.FromBytes(got) != digest.FromBytes(f.Data) {
			t.Errorf("%s: %v, or other bytes", name, err)
		}
	}
	waitFor(t, "the model to be complete", func() error {
		for name, f := range b.Files {
			if len(f.Data) > 0 && !complete(n, f.Data) {
				return fmt.Errorf("%s is not", name)
			}
		}
		return nil
	})
	n.Registry.Wire.Link(0, 0)
	wantFiles(t, n, ref, states(b))
}

// Many readers of one model get only its bytes while it is fetched.
func TestLazyManyReaders(t *testing.T) {
	const readers, each = 64, 30
	n := node.StartNode(t, node.Options{})
	m := mountLazy(t, n, 64<<20, 24<<20)
	failed := make([]error, readers)
	var work sync.WaitGroup
	for i := range readers {
		work.Go(func() {
			for range each {
				size := 1 + rand.IntN(200_000)
				if err := m.read(rand.IntN(len(m.want)-size), size); err != nil {
					failed[i] = err
					return
				}
			}
		})
	}
	work.Wait()
	if err := errors.Join(failed...); err != nil {
		t.Error(err)
	}
	m.awaitComplete(t)
}

// lastReader returns the number of the last container started by rootOf.
func lastReader() string { return fmt.Sprint(containers) }

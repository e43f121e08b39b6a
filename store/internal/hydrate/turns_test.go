package hydrate_test

import (
	"context"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/hydrate"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/opencontainers/go-digest"
)

// tenth is a Fetcher whose answers take a tenth of a second.
type tenth struct{ *storetest.Fetcher }

func (f tenth) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	time.Sleep(time.Second / 10)
	return f.Fetcher.Fetch(ctx, d, size, off, n)
}

// TestOrderLeavesNoConnectionIdle: a file begins when the last chunk of the one before is requested, not when that one is
// complete. Six chunks of each file are no multiple of the four connections.
func TestOrderLeavesNoConnectionIdle(t *testing.T) {
	for _, converted := range []bool{false, true} {
		t.Run(fmt.Sprintf("converted %v", converted), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const files, chunks, connections = 4, 6, 4
				b := storetest.NewBuilder("m")
				var all [][]byte
				for i := range files {
					p := storetest.Random(uint64(i), chunks*filetable.MaxChunk)
					if path := fmt.Sprint(i, ".safetensors"); converted {
						b.RawChunks(path, p, 0o644, filetable.MaxChunk)
					} else {
						b.Raw(path, p, 0o644)
					}
					all = append(all, p)
				}
				if converted {
					b.Stated(t, all...)
				}
				h, began := start(t), time.Now()
				err := h.Hydrate(t.Context(), digest.FromString("m"), b.Table(), hydrate.Options{Sources: storetest.From(tenth{storetest.NewFetcher(all...)})})
				if err != nil {
					t.Fatal(err)
				}
				if got, want := time.Since(began), files*chunks/connections*time.Second/10; got > want {
					t.Errorf("it took %v, want %v", got, want)
				}
			})
		})
	}
}

package carton_test

import (
	"context"
	"io"
	"net/http"
	"testing"

	"github.com/ballast-dev/ballast/convert/carton"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/opencontainers/go-digest"
)

// gated is a Fetcher of blobs that need credentials.
type gated struct{ p []byte }

func (g gated) Fetch(ctx context.Context, _ digest.Digest, _, off, n int64) (io.ReadCloser, int64, error) {
	body, err := at(g.p).Range(ctx, off, n)
	return transfer.NewBody(ctx, body, true), off, err
}

// TestBodiesAreAsPrivateAsTheSource checks that the bodies of members of all methods are as private
// as the archive. A URL with a query is private, because it can be signed.
func TestBodiesAreAsPrivateAsTheSource(t *testing.T) {
	want := converttest.GoodCarton(storetest.Random(4, 5<<20))
	p := want.Bytes()
	s := serve(t, map[string]http.HandlerFunc{"/m.carton": content(p), "/whole.carton": noRanges(p, true)})
	tests := []struct {
		name    string
		src     carton.Source
		private bool
	}{
		{"memory", at(p), false},
		{"URL", openURL(t, s.URL+"/m.carton", options(t)), false},
		{"signed URL", openURL(t, s.URL+"/m.carton?sig=x", options(t)), true},
		{"copy of a URL", openURL(t, s.URL+"/whole.carton", options(t)), false},
		{"copy of a signed URL", openURL(t, s.URL+"/whole.carton?sig=x", options(t)), true},
		{"blob that needs credentials", carton.Blob(gated{p}, digest.FromBytes(p), int64(len(p))), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := open(t, tt.src, carton.Options{})
			m, err := c.Model(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			f := c.Fetcher()
			for _, b := range m.Table.Blobs {
				for _, n := range []int64{1, b.Size} {
					body, _, err := f.Fetch(t.Context(), b.Digest, b.Size, 0, n)
					if err != nil {
						t.Fatal(err)
					}
					if got := transfer.IsPrivate(body); got != tt.private {
						t.Errorf("%d of %d bytes: private %t, want %t", n, b.Size, got, tt.private)
					}
					body.Close()
				}
			}
		})
	}
}

// TestSignedLinksArePrivate fetches weights from URLs in LINKS with and without a query.
func TestSignedLinksArePrivate(t *testing.T) {
	weights := storetest.Random(5, 9<<20)
	s := serve(t, map[string]http.HandlerFunc{"/w": content(weights)})
	for url, private := range map[string]bool{s.URL + "/w": false, s.URL + "/w?sig=x": true} {
		c := open(t, at(linked(weights, url).Bytes()), options(t))
		size := int64(len(weights))
		body, _, err := c.Fetcher().Fetch(t.Context(), digest.FromBytes(weights), size, 0, size)
		if err != nil {
			t.Fatal(err)
		}
		if got := transfer.IsPrivate(body); got != private {
			t.Errorf("%s: private %t, want %t", url, got, private)
		}
		body.Close()
	}
}

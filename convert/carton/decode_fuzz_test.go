package carton

import (
	"bytes"
	stdgzip "compress/gzip"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/klauspost/compress/zstd"
)

// FuzzContentEncoding decodes a response with the codings in its header, and also reads gzip with
// the standard library.
func FuzzContentEncoding(f *testing.F) {
	var z bytes.Buffer
	w := stdgzip.NewWriter(&z)
	_, _ = w.Write([]byte("hello, hello, hello"))
	w.Close()
	f.Add("gzip", z.Bytes())
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add("zstd", enc.EncodeAll([]byte("hello"), nil))
	for _, s := range []string{"identity", "", "gzip, zstd", "deflate", "br", "x-gzip,,identity", "gzip,gzip,gzip,gzip", "lzma"} {
		f.Add(s, z.Bytes())
	}
	f.Fuzz(func(t *testing.T, header string, p []byte) {
		list, err := codings([]string{header})
		if err != nil {
			return
		}
		if len(list) > maxCodings {
			t.Fatalf("codings %q", list)
		}
		got, err := decodeAll(p, list)
		switch {
		case len(list) == 0:
			if err != nil || !bytes.Equal(got, p) {
				t.Fatalf("identity changed %q to %q, %v", p, got, err)
			}
		case len(list) == 1 && list[0] == "gzip":
			r, wantErr := stdgzip.NewReader(bytes.NewReader(p))
			var want []byte
			if wantErr == nil {
				want, wantErr = io.ReadAll(io.LimitReader(r, maxFuzz))
			}
			if err == nil && (wantErr != nil || !bytes.Equal(got, want)) {
				t.Fatalf("got %q, want %q, %v", got, want, wantErr)
			}
		}
	})
}

func decodeAll(p []byte, list []string) ([]byte, error) {
	r, err := decode(io.NopCloser(bytes.NewReader(p)), list)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, maxFuzz))
}

// FuzzAnswer checks the bounds of values in the headers of a response.
func FuzzAnswer(f *testing.F) {
	f.Add("5", "bytes 0-9/10")
	f.Add("Fri, 31 Dec 9999 23:59:59 GMT", "bytes 0-9/*")
	f.Add("-2147483648", "bytes 9223372036854775806-9223372036854775807/9223372036854775807")
	f.Fuzz(func(t *testing.T, after, part string) {
		if d, ok := transfer.ParseRetryAfter(after, time.Now()); d < 0 || d > transfer.MaxRetryAfter || !ok && d != 0 {
			t.Fatalf("Retry-After %q is %v, %t", after, d, ok)
		}
		r, err := partOf(&http.Response{Header: http.Header{"Content-Range": {part}}})
		if err == nil && (r.First < 0 || r.Last < r.First || r.Size <= r.Last) {
			t.Fatalf("Content-Range %q is %+v", part, r)
		}
	})
}

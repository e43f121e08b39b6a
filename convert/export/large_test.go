package export

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/layout"
	"github.com/ballast-dev/ballast/convert/signature/dsse"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
)

// TestLargeSignature signs no files whose signature readers would refuse.
func TestLargeSignature(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	l, err := layout.Create(t.TempDir(), "v1")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const each = len(`{"name":"","algorithm":"sha256","digest":""},`) + 64 + 100 // bytes of a file in a statement
	for files, signs := range map[int]int{maxStatement/each - 10: 2, maxStatement/each + 10: 1} {
		signed := 0
		w := &writer{&job{o: Options{Sign: func(ctx context.Context, all []dsse.Statement) ([][]byte, string, error) {
			bundles, by, err := WithKey(key)(ctx, all)
			for _, b := range bundles {
				if _, err := dsse.Parse(b); err != nil {
					t.Errorf("%d files: %v", files, err)
				}
				signed++
			}
			return bundles, by, err
		}}}, l}
		docs := documents{manifest: []byte("{}"), files: func() (list []filetable.File, err error) {
			for i := range files {
				list = append(list, filetable.File{Path: fmt.Sprintf("%0100d", i), Type: filetable.TypeReg, Digest: digest.FromString("x")})
			}
			return list, nil
		}}
		var res Result
		err := w.sign(t.Context(), docs, &res)
		if lost := strings.Contains(strings.Join(res.Losses, ""), fmt.Sprintf("for %d files", files)); err != nil || signed != signs || lost != (signs == 1) {
			t.Errorf("%d files: %d signatures, want %d; losses %q, %v", files, signed, signs, res.Losses, err)
		}
	}
}

package daemon

import (
	"bytes"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/convert/converttest"
)

// TestStoreKnowsGGUF: the store fetches the header of a GGUF file before its tensors, so it must know where that ends.
func TestStoreKnowsGGUF(t *testing.T) {
	p := converttest.GGUF(converttest.SmallGGUF())
	s := storeOptions(new(config.Config), nil).GGUF(int64(len(p)))
	if s.Write(p[:20]); s.Done() {
		t.Error("done after 20 bytes")
	}
	if s.Write(p[20:]); !s.Done() {
		t.Errorf("not done after %d bytes", len(p))
	}
	garbage := storeOptions(new(config.Config), nil).GGUF(1 << 30)
	if garbage.Write(bytes.Repeat([]byte{0xff}, 100)); !garbage.Done() {
		t.Error("not done after 100 bytes of garbage")
	}
}

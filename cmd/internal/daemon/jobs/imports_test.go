package jobs

import (
	"context"
	"errors"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

var errAsked = errors.New("asked")

// An askedFacade records the options of the last import.
type askedFacade struct {
	rigFacade
	asked *registry.ImportOptions
}

func (f askedFacade) Import(_ context.Context, _ remote.Ref, _ registry.Blobs, _ ocispec.Descriptor, o registry.ImportOptions) (*registry.Import, error) {
	*f.asked = o
	return nil, errAsked
}

// The files of a model in a user's Ollama store are private, even under a name of the public library.
func TestImportIsPrivate(t *testing.T) {
	t.Parallel()
	r, asked := newPullRig(t), registry.ImportOptions{}
	r.Facade = askedFacade{r.Facade.(rigFacade), &asked}
	for name, want := range map[string]registry.ImportOptions{
		"library/mine": {PrivateFiles: true}, "team/mine": {Private: true, PrivateFiles: true},
	} {
		dir := t.TempDir()
		b := converttest.Ollama(converttest.Files([]byte("weights")), converttest.OllamaConfigNew)
		if err := converttest.WriteOllamaStore(dir, converttest.StoreLegacy, "registry.ollama.ai/"+name+"/1b", b); err != nil {
			t.Fatal(err)
		}
		_, err := r.Import(t.Context(), wire.ImportRequest{Dir: dir, Model: name + ":1b"}, func([]wire.Event) error { return nil })
		if !errors.Is(err, errAsked) || asked != want {
			t.Errorf("%s: %+v, %v, want %+v", name, asked, err, want)
		}
	}
}

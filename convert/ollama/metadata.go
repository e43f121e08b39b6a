package ollama

import (
	"fmt"
	"maps"
	"strings"

	"github.com/ballast-dev/ballast/convert/safetensors"
	"github.com/containerd/errdefs"
)

// maxMetadata limits the entries of metadata of the blobs of a model, and of the inputs of a file:
// a blob with several tensors counts once for each, and entries of each tensor count separately.
const maxMetadata = 1 << 20

func tooMuchMetadata() error {
	return fmt.Errorf("more than %d entries of metadata: %w", maxMetadata, errdefs.ErrInvalidArgument)
}

// withMetadata returns the headers of the inputs of a file with their metadata.
//
// Metadata that is equal in all blobs that have it, such as the kind of quantisation, is recorded
// for the file. Other metadata is recorded for each tensor of the blob for which the blob has no
// entry of its own, but not for the scales and biases of a tensor.
func (f *merged) withMetadata() ([]*safetensors.Header, error) {
	agreed, disputed, work := f.agree()
	if work += len(agreed) * len(f.inputs); work > maxMetadata {
		return nil, tooMuchMetadata()
	}
	headers := make([]*safetensors.Header, len(f.inputs))
	for n, in := range f.inputs {
		h := *in.header
		h.Metadata = maps.Clone(agreed) // all inputs have it, so it is unchanged
		for k, v := range in.wide {
			if !disputed[k] {
				continue
			}
			names := in.quantised()
			if work += len(names); work > maxMetadata {
				return nil, tooMuchMetadata()
			}
			for _, name := range names {
				h.Metadata[name+"."+k] = v
			}
		}
		maps.Copy(h.Metadata, in.header.Metadata)
		headers[n] = &h
	}
	return headers, nil
}

// agree returns the metadata that is equal in all blobs that have it, the keys that are not, and
// the number of entries compared.
func (f *merged) agree() (agreed map[string]string, disputed map[string]bool, work int) {
	agreed, disputed = map[string]string{}, map[string]bool{}
	for _, in := range f.inputs {
		work += len(in.wide)
		for k, v := range in.wide {
			if have, ok := agreed[k]; ok && have != v {
				disputed[k] = true
			}
			agreed[k] = v
		}
	}
	for k := range disputed {
		delete(agreed, k)
	}
	return agreed, disputed, work
}

// companions are the suffixes of the names of tensors that belong to a quantised one, which has at
// least the first.
var companions = []string{".scale", ".bias", ".global_scale"}

// quantised returns the names of the tensors of an input that do not belong to another one.
func (in *input) quantised() []string {
	names := make(map[string]bool, len(in.header.Tensors))
	for _, t := range in.header.Tensors {
		names[t.Name] = true
	}
	var list []string
	for _, t := range in.header.Tensors {
		belongs := false
		for _, suffix := range companions {
			base, ok := strings.CutSuffix(t.Name, suffix)
			belongs = belongs || ok && names[base] && names[base+companions[0]]
		}
		if !belongs {
			list = append(list, t.Name)
		}
	}
	return list
}

// splitMetadata separates the metadata of single tensors from that of the blob. names maps the
// tensors that are used to their new names; metadata of others, of which all has the names, is left out.
func splitMetadata(metadata, names map[string]string, all map[string]bool) (single, wide map[string]string) {
	single, wide = map[string]string{}, map[string]string{}
	for k, v := range metadata {
		dot := max(strings.LastIndexByte(k, '.'), 0)
		if name, ok := names[k[:dot]]; ok {
			single[name+k[dot:]] = v
		} else if !all[k[:dot]] {
			wide[k] = v
		}
	}
	return single, wide
}

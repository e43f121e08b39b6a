package ollama

import (
	"fmt"
	"maps"
	"strings"

	"github.com/ballast-dev/ballast/convert/safetensors"
	"github.com/containerd/errdefs"
)

// maxMetadata is how many entries of metadata the blobs of a model can have, and the inputs of a
// file: a blob that is several tensors counts each time, and what is said of each tensor for each.
const maxMetadata = 1 << 20

func tooMuchMetadata() error {
	return fmt.Errorf("more than %d entries of metadata: %w", maxMetadata, errdefs.ErrInvalidArgument)
}

// withMetadata returns the inputs of a file with their metadata.
//
// What all blobs agree on that say it, such as how tensors are quantised, is said of the file. What
// they do not agree on is said of each tensor of the blob that the blob says nothing else of, but
// not of the scales and biases that belong to one.
func (f *merged) withMetadata() ([]safetensors.Input, error) {
	agreed, disputed, work := f.agree()
	if work += len(agreed) * len(f.inputs); work > maxMetadata {
		return nil, tooMuchMetadata()
	}
	inputs := make([]safetensors.Input, len(f.inputs))
	for n, in := range f.inputs {
		h := *in.header
		h.Metadata = maps.Clone(agreed) // all inputs have it, so it stays as it is
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
		inputs[n].Header = &h
	}
	return inputs, nil
}

// agree returns what all blobs agree on that say it, the keys that they do not agree on, and the
// number of entries that it looked at.
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

// companions are the ends of the names of tensors that belong to a quantised one; it has the
// first at least.
var companions = []string{".scale", ".bias", ".global_scale"}

// quantised returns the names of the tensors of an input that belong to no other.
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

// splitMetadata returns what a blob says of single tensors and of all. Names has the tensors that
// count, and how they are called; what is said of others is left out.
func splitMetadata(h *safetensors.Header, names map[string]string) (single, wide map[string]string) {
	single, wide = map[string]string{}, map[string]string{}
	others := map[string]bool{}
	if len(names) < len(h.Tensors) {
		for _, t := range h.Tensors {
			others[t.Name] = true
		}
	}
	for k, v := range h.Metadata {
		dot := max(strings.LastIndexByte(k, '.'), 0)
		if name, ok := names[k[:dot]]; ok {
			single[name+k[dot:]] = v
		} else if !others[k[:dot]] {
			wide[k] = v
		}
	}
	return single, wide
}

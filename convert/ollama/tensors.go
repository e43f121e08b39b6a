package ollama

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/safetensors"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

const (
	tensorFile = "model.safetensors"
	draftDir   = "draft"

	// dataKey is the only key in a blob whose tensor is named by the manifest.
	dataKey = "data"
)

// maxComponents limits the number of files assembled from tensors. The largest number seen, of a
// model that generates images, is five.
const maxComponents = 64

// tensors assembles tensor layers into files.
type tensors struct {
	*parser
	headers map[digest.Digest]*header // none for blobs without header
	dirs    map[string]bool           // directories that are components
	draft   string                    // the prefix of the names of the draft's tensors
	files   []*merged                 // in the order of the manifest
	index   *headerIndex
	work    int // number of metadata entries read
}

// A merged file is a safetensors file assembled from tensor layers.
type merged struct {
	path   string
	inputs []input
	names  map[string]origin
}

// An input is a run of consecutive tensors of one blob. Its header has the names of the tensors in
// the file.
type input struct {
	header *safetensors.Header
	wide   map[string]string // metadata of the blob for all its tensors
	layer  int
	blob   digest.Digest
}

// An origin is where a tensor comes from.
type origin struct {
	layer int
	blob  digest.Digest
	safetensors.Tensor
}

// addTensors adds the files assembled from tensor layers.
func (p *parser) addTensors(ctx context.Context, mf *modelfile, layers map[mediatype.Part][]int) error {
	list := layers[mediatype.PartTensor]
	if len(list) == 0 {
		return nil
	}
	if kind := p.configType; kind != "" && !isSafetensors(kind) {
		return p.layerError(list[0], fmt.Errorf("a tensor of a model whose config is of type %.100q, which is not assembled into a file: %w", kind, errdefs.ErrNotImplemented))
	}
	if len(layers[mediatype.PartModel]) == 0 {
		mf.line("FROM", ".")
	}
	ts := &tensors{parser: p, dirs: map[string]bool{}, index: newHeaderIndex(), draft: p.config.Object("draft").String("tensor_prefix")}
	for _, i := range layers[mediatype.PartJSON] {
		if dir, _, ok := strings.Cut(p.manifest.Layers[i].Name, "/"); ok {
			ts.dirs[dir] = true
		}
	}
	bare, err := ts.bareTensors(list)
	if err != nil {
		return err
	}
	if ts.headers, err = p.readHeaders(ctx, ts.withHeader(list, bare)); err != nil {
		return err
	}
	for _, i := range list {
		if err := ts.addLayer(i, bare); err != nil {
			return p.layerError(i, err)
		}
	}
	if len(ts.files) == 0 {
		return fmt.Errorf("tensor layers without tensors: %w", errdefs.ErrInvalidArgument)
	}
	return ts.assemble()
}

// bareTensors returns headers for the layers whose blobs have only the bytes: those with type and
// shape in the media type.
func (ts *tensors) bareTensors(layers []int) (map[int]*safetensors.Header, error) {
	bare := map[int]*safetensors.Header{}
	kind := map[digest.Digest]bool{}
	for _, i := range layers {
		l := ts.manifest.Layers[i]
		params, err := mediatype.Params(l.MediaType)
		if err != nil {
			return nil, ts.layerError(i, err)
		}
		_, dtype := params["dtype"]
		_, shape := params["shape"]
		is := dtype || shape
		if was, ok := kind[l.Digest]; ok && was != is {
			return nil, ts.layerError(i, fmt.Errorf("the same blob is a tensor with and without header: %w", errdefs.ErrInvalidArgument))
		}
		kind[l.Digest] = is
		if !is {
			continue
		}
		if bare[i], err = bareTensor(l, params); err != nil {
			return nil, ts.layerError(i, err)
		}
	}
	return bare, nil
}

func bareTensor(l convert.Descriptor, params map[string]string) (*safetensors.Header, error) {
	t := safetensors.Tensor{Name: params["name"], DType: strings.ToUpper(params["dtype"]), Size: l.Size}
	if err := checkName(t.Name); err != nil {
		return nil, err
	}
	text, ok := params["shape"]
	if !ok || t.DType == "" {
		return nil, fmt.Errorf("tensor %.100q: no dtype or no shape: %w", t.Name, errdefs.ErrInvalidArgument)
	}
	var err error
	if t.Shape, err = parseShape(text); err != nil {
		return nil, fmt.Errorf("tensor %.100q: %w", t.Name, err)
	}
	h := &safetensors.Header{Tensors: []safetensors.Tensor{t}, DataSize: l.Size}
	_, err = safetensors.Encode(h) // checks the size
	return h, err
}

// withHeader returns the first layer of each blob that has a header.
func (ts *tensors) withHeader(layers []int, bare map[int]*safetensors.Header) []int {
	var list []int
	seen := map[digest.Digest]bool{}
	for _, i := range layers {
		d := ts.manifest.Layers[i].Digest
		if bare[i] == nil && !seen[d] {
			seen[d] = true
			list = append(list, i)
		}
	}
	return list
}

// addLayer adds the tensors of layer i.
func (ts *tensors) addLayer(i int, bare map[int]*safetensors.Header) error {
	l := ts.manifest.Layers[i]
	h := ts.headers[l.Digest]
	first := ts.index.blob(i, l, h)
	if l.Size > 0 { // otherwise there is nothing to download
		if err := ts.builder.AddFragments(i, mediatype.KindWeight); err != nil {
			return err
		}
	}
	switch {
	case h == nil:
		return ts.add(tensorFile, input{header: bare[i], layer: i, blob: l.Digest})
	case len(h.Tensors) == 1 && h.Tensors[0].Name == dataKey:
		return ts.addData(i, l, h.Header)
	case slices.ContainsFunc(h.Tensors, func(t safetensors.Tensor) bool { return t.Name == dataKey }):
		return fmt.Errorf("a tensor %q beside others: %w", dataKey, errdefs.ErrInvalidArgument)
	case !first:
		return nil // all its tensors are already added
	}
	return ts.addNamed(i, l, h.Header)
}

// addData adds the tensor of a blob that is named by the manifest.
func (ts *tensors) addData(i int, l convert.Descriptor, h *safetensors.Header) error {
	to := place{tensorFile, l.Name}
	if dir, key, ok := strings.Cut(l.Name, "/"); ok {
		to = place{dir + "/" + tensorFile, key}
	}
	if err := checkName(to.key); err != nil {
		return err
	}
	return ts.addRun(i, l, h, h.Tensors, nil, func(string) string { return to.key }, to.file)
}

// addNamed adds the tensors of a blob that are named by its header: as one run, unless some of them
// belong to other files.
func (ts *tensors) addNamed(i int, l convert.Descriptor, h *safetensors.Header) error {
	all := map[string]bool{} // for metadata: there can be as many runs as tensors
	for _, t := range h.Tensors {
		all[t.Name] = true
	}
	for rest := h.Tensors; len(rest) > 0; {
		to := ts.place(rest[0].Name)
		n := slices.IndexFunc(rest, func(t safetensors.Tensor) bool { return ts.place(t.Name).file != to.file })
		if n < 0 {
			n = len(rest)
		}
		key := func(name string) string { return ts.place(name).key }
		if err := ts.addRun(i, l, h, rest[:n], all, key, to.file); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// A place is the file of a tensor, and its key there.
type place struct{ file, key string }

// place returns the place of a tensor named by its header: the file of the component or draft in
// its name, or the one of the model.
func (ts *tensors) place(name string) place {
	if dir, key, ok := strings.Cut(name, "/"); ok && key != "" && ts.dirs[dir] {
		return place{dir + "/" + tensorFile, key}
	}
	if ts.draft != "" && strings.HasPrefix(name, ts.draft) {
		return place{draftDir + "/" + tensorFile, name}
	}
	return place{tensorFile, name}
}

// addRun adds consecutive tensors of a blob to a file. all has the names of those of the blob, if there are others. key
// returns the names of the run in the file.
func (ts *tensors) addRun(i int, l convert.Descriptor, h *safetensors.Header, run []safetensors.Tensor, all map[string]bool, key func(string) string, file string) error {
	if ts.work += len(h.Metadata); ts.work > maxMetadata {
		return tooMuchMetadata()
	}
	start, end := run[0].Offset, run[len(run)-1].Offset+run[len(run)-1].Size
	in := input{layer: i, blob: l.Digest, header: &safetensors.Header{DataOffset: h.DataOffset + start, DataSize: end - start}}
	names := map[string]string{}
	for _, t := range run {
		names[t.Name] = key(t.Name)
		t.Name = names[t.Name]
		t.Offset -= start
		in.header.Tensors = append(in.header.Tensors, t)
	}
	in.header.Metadata, in.wide = splitMetadata(h.Metadata, names, all)
	return ts.add(file, in)
}

// add adds an input to the file at path. The same tensors of the same blob are added once.
func (ts *tensors) add(path string, in input) error {
	f := ts.file(path)
	if len(ts.files) > maxComponents {
		return fmt.Errorf("more than %d components: %w", maxComponents, errdefs.ErrInvalidArgument)
	}
	there := 0
	for _, t := range in.header.Tensors {
		t.Offset += in.header.DataOffset
		have, ok := f.names[t.Name]
		if !ok {
			f.names[t.Name] = origin{in.layer, in.blob, t}
			continue
		}
		if have.blob != in.blob || have.Offset != t.Offset || have.Size != t.Size || have.DType != t.DType || !slices.Equal(have.Shape, t.Shape) {
			return fmt.Errorf("tensor %.100q is in layer %d too (%s), and is another: %w", t.Name, have.layer, have.blob, errdefs.ErrInvalidArgument)
		}
		there++
	}
	switch there {
	case 0:
		f.inputs = append(f.inputs, in)
	case len(in.header.Tensors):
	default:
		return fmt.Errorf("some of its tensors are in other layers too: %w", errdefs.ErrInvalidArgument)
	}
	return nil
}

// file returns the file at path, which it creates if necessary.
func (ts *tensors) file(path string) *merged {
	for _, f := range slices.Backward(ts.files) {
		if f.path == path {
			return f
		}
	}
	f := &merged{path: path, names: map[string]origin{}}
	ts.files = append(ts.files, f)
	return f
}

// assemble adds the files to the model, and what is needed to restore the blobs.
func (ts *tensors) assemble() error {
	size := 0
	for _, f := range ts.files {
		n, err := ts.assembleFile(f)
		if err != nil {
			return fmt.Errorf("%s: %w", f.path, err)
		}
		if size += n; size > maxHeaders {
			return fmt.Errorf("%s: the headers of the files have more than %d bytes: %w", f.path, maxHeaders, errdefs.ErrInvalidArgument)
		}
	}
	return ts.index.add(ts.builder)
}

// describe adds the facts in the header of a file to the model, unless it is the draft.
func (ts *tensors) describe(path string, start []byte, size int64) error {
	if path == draftDir+"/"+tensorFile {
		return nil
	}
	h, err := safetensors.Read(start, safetensors.Options{Size: size})
	if err != nil {
		return err
	}
	ts.summaries = append(ts.summaries, h.Summary())
	return nil
}

// assembleFile adds a file and returns the size of its header.
func (ts *tensors) assembleFile(f *merged) (int, error) {
	headers, err := f.withMetadata()
	if err != nil {
		return 0, err
	}
	start, ranges, err := safetensors.Merge(headers)
	if err != nil {
		return 0, err
	}
	parts := []filetable.Source{{Inline: start}}
	at := int64(len(start))
	for _, r := range ranges {
		blob := f.inputs[r.Input].blob
		parts = append(parts, filetable.Source{Blob: blob, Offset: r.Offset, Size: r.Size})
		ts.index.note(blob, r.Offset, indexedRange{File: f.path, Offset: at, Size: r.Size})
		at += r.Size
	}
	if err := ts.describe(f.path, start, at); err != nil {
		return 0, err
	}
	return len(start), ts.builder.Assemble(f.inputs[0].layer, f.path, parts, "")
}

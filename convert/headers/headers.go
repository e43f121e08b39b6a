// Package headers reads the metadata of a model from the headers of its files.
//
//	file ─▶ Sniffer (GGUF, safetensors, config.json) ─▶ Describe ─▶ ModelPack config, context length
//
// A Sniffer reads the bytes of a file as they are written to it. Read opens files and reads only as
// much of them as needed. A header that is invalid or too large is a Problem to report, never an
// error: missing metadata must not prevent access to the files.
//
// Read reads at most 256 files and 256 MiB.
package headers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/gguf"
	"github.com/ballast-dev/ballast/convert/safetensors"
	"github.com/opencontainers/go-digest"
)

// Limits of Read.
const (
	MaxFiles = 256
	maxBytes = 256 << 20 // 256 MiB
)

// maxModelConfig limits config.json, in bytes.
const maxModelConfig = 1 << 20 // 1 MiB

// A Sniffer reads the header of a file whose bytes are written to it from the start. It is not safe
// for concurrent use.
type Sniffer struct {
	path string
	size int64

	gguf    *gguf.Sniffer
	tensors *safetensors.Sniffer
	text    []byte // of a config.json

	summary *safetensors.Summary
	err     error
}

// Has reports whether a file of this name and size may have a header.
func Has(p string, size int64) bool {
	switch kindOf(p) {
	case kindGGUF, kindTensors:
		return size > 0
	case kindConfig:
		return size > 0 && size <= maxModelConfig
	}
	return false
}

type kind int

const (
	kindNone kind = iota
	kindGGUF
	kindTensors
	kindConfig
)

func kindOf(p string) kind {
	switch name := strings.ToLower(p); {
	case strings.HasSuffix(name, ".gguf"), strings.HasSuffix(name, ".mmproj"):
		return kindGGUF
	case strings.HasSuffix(name, ".safetensors"):
		return kindTensors
	case name == "config.json":
		return kindConfig
	}
	return kindNone
}

// NewSniffer returns a Sniffer for a file with a path in its model and a size in bytes. For a file
// without a header it keeps nothing.
func NewSniffer(p string, size int64) *Sniffer {
	s := &Sniffer{path: p, size: size}
	if !Has(p, size) {
		return s
	}
	switch kindOf(p) {
	case kindGGUF:
		s.gguf = gguf.NewSniffer(gguf.Options{Size: size})
	case kindTensors:
		s.tensors = safetensors.NewSniffer(safetensors.Options{Size: size})
	case kindConfig:
		s.text = []byte{}
	}
	return s
}

// Write reads the next bytes of the file. It always returns len(p) and nil.
func (s *Sniffer) Write(p []byte) (int, error) {
	switch {
	case s.gguf != nil:
		_, _ = s.gguf.Write(p) // never fails
	case s.tensors != nil:
		_, _ = s.tensors.Write(p) // never fails
		if s.tensors.Done() {
			if h, err := s.tensors.Header(); err != nil {
				s.err = err
			} else {
				sum := h.Summary()
				s.summary = &sum
			}
			s.tensors = nil // the header can be large
		}
	case s.text != nil && int64(len(s.text)) < s.size:
		s.text = append(s.text, p[:min(int64(len(p)), s.size-int64(len(s.text)))]...)
	}
	return len(p), nil
}

// Done reports whether further bytes cannot change the result.
func (s *Sniffer) Done() bool {
	switch {
	case s.gguf != nil:
		return s.gguf.Done()
	case s.tensors != nil:
		return false
	case s.text != nil:
		return int64(len(s.text)) == s.size
	}
	return true
}

// A Report is the metadata in the headers of a model.
type Report struct {
	Config        convert.Config
	ContextLength int64 // tokens; zero if unknown
	Problems      []Problem
}

// A Problem is a header that cannot be read, or a file that is missing.
type Problem struct {
	Path string
	Text string
}

func (p Problem) String() string { return fmt.Sprintf("%q: %s", p.Path, p.Text) }

// part matches the name of a file of a set, such as "model-00001-of-00003.safetensors".
var part = regexp.MustCompile(`^(.+-)([0-9]{5})-of-([0-9]{5})(\.[^/]+)$`)

// Missing returns a Problem for each numbered set of files that is not complete in a list of paths.
func Missing(paths []string) (problems []Problem) {
	type set struct{ before, count, after string }
	sets, found := map[set]map[int]bool{}, []set{}
	for _, p := range paths {
		m := part.FindStringSubmatch(p)
		if m == nil {
			continue
		}
		s := set{m[1], m[3], m[4]}
		if sets[s] == nil {
			sets[s], found = map[int]bool{}, append(found, s)
		}
		n, _ := strconv.Atoi(m[2]) // digits
		sets[s][n] = true
	}
	for _, s := range found {
		count, _ := strconv.Atoi(s.count)
		first := 1
		if sets[s][0] { // a few programs count from zero
			first = 0
		}
		missing := count
		for n := range sets[s] {
			if n >= first && n < first+count {
				missing--
			}
		}
		if missing == 0 {
			continue
		}
		for sets[s][first] {
			first++
		}
		name := fmt.Sprintf("%s%05d-of-%s%s", s.before, first, s.count, s.after)
		problems = append(problems, Problem{name, fmt.Sprintf("missing, with %d of %d files of its set", missing, count)})
	}
	return problems
}

// Describe combines the headers of the files of a model.
func Describe(list []*Sniffer) Report {
	var r Report
	var ggufs []*gguf.Header
	var tensors []*Sniffer
	var model safetensors.ModelConfig
	for _, s := range list {
		err := s.err
		switch {
		case s.gguf != nil:
			var h *gguf.Header
			if h, err = s.gguf.Header(); err == nil {
				ggufs = append(ggufs, h)
			}
		case s.summary != nil:
			tensors = append(tensors, s)
		case s.tensors != nil:
			_, err = s.tensors.Header() // incomplete
		case s.text != nil && int64(len(s.text)) == s.size:
			model, _ = safetensors.ParseConfig(s.text) // an invalid config is ignored
		}
		if err != nil {
			r.Problems = append(r.Problems, Problem{s.path, err.Error()})
		}
	}
	r.Config = gguf.Describe(ggufs...)
	n := gguf.ContextLength(ggufs...)
	if len(tensors) > 0 {
		r.Config = convert.MergeConfig(r.Config, safetensors.Describe(together(tensors), model))
		if n == 0 {
			n = model.ContextLength
		}
	}
	if n <= math.MaxInt64 {
		r.ContextLength = int64(n)
	}
	return r
}

// together returns the summaries of the files that a loader reads together: those in the top
// directory if there are any, since other directories have other models or components, and without
// the second copy of the weights that some publishers add in another form.
func together(list []*Sniffer) []safetensors.Summary {
	top := func(s *Sniffer) bool { return !strings.Contains(s.path, "/") }
	if slices.ContainsFunc(list, top) {
		list = slices.DeleteFunc(slices.Clone(list), func(s *Sniffer) bool { return !top(s) })
	}
	extra := func(s *Sniffer) bool { return strings.HasPrefix(strings.ToLower(path.Base(s.path)), "consolidated") }
	if !slices.ContainsFunc(list, func(s *Sniffer) bool { return !extra(s) }) {
		extra = func(*Sniffer) bool { return false }
	}
	var out []safetensors.Summary
	for _, s := range list {
		if !extra(s) {
			out = append(out, *s.summary)
		}
	}
	return out
}

// A File is a file of a model for Read.
type File struct {
	Path string // in the model
	Size int64  // bytes
	Open func(context.Context) (io.ReadCloser, error)

	// Digest, if not empty, is that of the file: of several with the same content, Read reads one, which is not in a
	// directory if possible.
	Digest digest.Digest
}

// Read reads the headers of files. A file that cannot be read, or is skipped because of a limit, is
// a Problem.
func Read(ctx context.Context, files []File) Report {
	var list []*Sniffer
	var problems []Problem
	left, read := int64(maxBytes), map[digest.Digest]string{}
	for _, f := range files {
		if have, ok := read[f.Digest]; !ok || strings.Count(f.Path, "/") < strings.Count(have, "/") {
			read[f.Digest] = f.Path
		}
	}
	for _, f := range files {
		if !Has(f.Path, f.Size) || f.Digest != "" && f.Path != read[f.Digest] {
			continue
		}
		if len(list) == MaxFiles {
			problems = append(problems, Problem{f.Path, fmt.Sprintf("skipped, like all following files: at most %d files are read", MaxFiles)})
			break
		}
		s := NewSniffer(f.Path, f.Size)
		n, err := s.read(ctx, f, left)
		if left -= n; err != nil {
			problems = append(problems, Problem{f.Path, err.Error()})
			continue
		}
		list = append(list, s)
	}
	r := Describe(list)
	r.Problems = append(r.Problems, problems...)
	return r
}

// pieceSize is the size of a read, in bytes.
const pieceSize = 256 << 10 // 256 KiB

// errLimit means that the headers of a model are too large.
var errLimit = errors.New("the headers of all files are larger than 256 MiB")

// read reads a file until its header is complete, at most limit bytes, and returns the number of
// bytes read.
func (s *Sniffer) read(ctx context.Context, f File, limit int64) (n int64, err error) {
	r, err := f.Open(ctx)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	p := make([]byte, min(f.Size, pieceSize))
	for !s.Done() {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		if n >= limit {
			return n, errLimit
		}
		k, err := r.Read(p)
		n += int64(k)
		_, _ = s.Write(p[:k]) // never fails
		switch {
		case err == io.EOF:
			return n, nil // Describe reports what is missing
		case err != nil && !s.Done():
			return n, err
		}
	}
	return n, nil
}

// Package headers says what is known of a model from the headers of its files.
//
//	file ─▶ Sniffer (GGUF, safetensors, config.json) ─▶ Describe ─▶ ModelPack config, context length
//
// A Sniffer is given the bytes of a file while they pass by; Read reads files for it, and no more
// of them than is needed. A header that is wrong or too large is a Problem to tell people of,
// never an error: metadata is no reason for not having the files.
//
// Read reads 256 files and 256 MiB at most.
package headers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/gguf"
	"github.com/ballast-dev/ballast/convert/safetensors"
)

// Limits of Read.
const (
	MaxFiles = 256
	maxBytes = 256 << 20 // 256 MiB
)

// maxModelConfig is the largest config.json that is read, in bytes.
const maxModelConfig = 1 << 20 // 1 MiB

// A Sniffer reads the header of a file whose bytes are written to it, from the first on. It is for
// one goroutine at a time.
type Sniffer struct {
	path string
	size int64

	gguf    *gguf.Sniffer
	tensors *safetensors.Sniffer
	text    []byte // of a config.json

	summary *safetensors.Summary
	err     error
}

// Has reports whether a file of this name and size can have a header.
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

// NewSniffer returns a Sniffer for a file of the given path in its model, and size in bytes. Of one
// that has no header it keeps nothing.
func NewSniffer(p string, size int64) *Sniffer {
	s := &Sniffer{path: p, size: size}
	s.Restart()
	return s
}

// Restart begins anew: the file is written from its first byte.
func (s *Sniffer) Restart() {
	*s = Sniffer{path: s.path, size: s.size}
	if !Has(s.path, s.size) {
		return
	}
	switch kindOf(s.path) {
	case kindGGUF:
		s.gguf = gguf.NewSniffer(gguf.Options{Size: s.size})
	case kindTensors:
		s.tensors = safetensors.NewSniffer(safetensors.Options{Size: s.size})
	case kindConfig:
		s.text = []byte{}
	}
}

// Write takes the next bytes of the file. It returns len(p) and nil, whatever they are.
func (s *Sniffer) Write(p []byte) (int, error) {
	switch {
	case s.gguf != nil:
		_, _ = s.gguf.Write(p) // fails never
	case s.tensors != nil:
		_, _ = s.tensors.Write(p) // fails never
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

// Done reports whether nothing that is still to come can change what is known.
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

// A Report is what headers say of a model.
type Report struct {
	Config        convert.Config
	ContextLength int64 // tokens, zero if it is not known
	Problems      []Problem
}

// A Problem is a header that can not be read.
type Problem struct {
	Path string `json:"path"`
	Text string `json:"text"`
}

// Describe puts together what is known of the files of a model.
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
			_, err = s.tensors.Header() // is not complete
		case s.text != nil && int64(len(s.text)) == s.size:
			model, _ = safetensors.ParseConfig(s.text) // what is wrong says nothing
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

// together returns the summaries of the files that a loader reads together: those at the top, if
// there are any, since directories have other models or components; and not the same weights once
// more in the other form that some publishers add.
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

// A File is a file of a model that Read can open.
type File struct {
	Path string // in the model
	Size int64  // bytes
	Open func(context.Context) (io.ReadCloser, error)
}

// Read reads the headers of files. A file that can not be read is a Problem, as is one that is left
// out because of a limit.
func Read(ctx context.Context, files []File) Report {
	var list []*Sniffer
	var problems []Problem
	left := int64(maxBytes)
	for _, f := range files {
		if !Has(f.Path, f.Size) {
			continue
		}
		if len(list) == MaxFiles {
			problems = append(problems, Problem{f.Path, fmt.Sprintf("left out, as all after it: %d files are read", MaxFiles)})
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

// pieceSize is how much of a file is read at a time, in bytes.
const pieceSize = 256 << 10 // 256 KiB

// errLimit says that the headers of a model are too large.
var errLimit = errors.New("the headers of all files are larger than 256 MiB")

// read reads a file until its header is known, up to limit bytes, and returns how many it has read.
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
		_, _ = s.Write(p[:k]) // fails never
		switch {
		case err == io.EOF:
			return n, nil // Describe says what is missing
		case err != nil && !s.Done():
			return n, err
		}
	}
	return n, nil
}

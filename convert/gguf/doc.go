// Package gguf reads the header of GGUF files: what a model is called, what it is made of, and
// how many parameters it has.
//
//	magic, version, counts ─▶ metadata (key, type, value) … ─▶ tensors (name, shape, type, offset) … ─▶ data
//
// Read reads it from an io.Reader. A Sniffer is given the bytes of a file while they pass by on
// their way to somewhere else; it fails no write, and costs nothing once the header is over.
// Describe turns headers into a ModelPack config.
//
//	s := gguf.NewSniffer(gguf.Options{Size: size})
//	_, err := io.Copy(io.MultiWriter(file, s), body)
//	…
//	if h, err := s.Header(); err == nil {
//		cfg = convert.MergeConfig(cfg, gguf.Describe(h))
//	}
//
// # What is trusted
//
// Nothing. A header is decoded field by field from pieces of any size, by one state machine that
// holds one field of at most 64 KiB at a time; what is not kept is dropped as it comes. Work and
// memory are bounded by the bytes that really came: at most MaxHeader, and never by a count or
// a length that the file claims. Of all texts together at most 64 KiB are kept; of tensors only
// sums are.
//
// Keys with a value of another type than the specification says, texts that are not UTF-8,
// keys that are not known, and the second of two equal keys are ignored. A number of elements that
// overflows makes the number of parameters unknown. Everything else that is wrong – a type of
// value that does not exist, a shape with five dimensions, an offset that is not aligned, data
// beyond the end of the file or more of it than the file has – makes the whole header invalid,
// so that no half of a lie is shown. A caller goes on without a header then: metadata
// is never a reason for not having the files.
//
// A chat template is a program. It is noted that there is one; it is not kept.
//
// The format: https://github.com/ggml-org/ggml/blob/v0.9.4/docs/gguf.md
package gguf

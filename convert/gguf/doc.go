// Package gguf reads the header of GGUF files: the name of a model, its architecture and formats,
// and the number of its parameters.
//
//	magic, version, counts ─▶ metadata (key, type, value) … ─▶ tensors (name, shape, type, offset) … ─▶ data
//
// A Sniffer receives the bytes of a file, such as during a transfer; its writes never fail, and cost
// nothing after the header. Describe turns headers into a ModelPack
// config.
//
//	s := gguf.NewSniffer(gguf.Options{Size: size})
//	_, err := io.Copy(io.MultiWriter(file, s), body)
//	…
//	if h, err := s.Header(); err == nil {
//		cfg = convert.MergeConfig(cfg, gguf.Describe(h))
//	}
//
// # Trust
//
// The input is not trusted. A header is decoded field by field from pieces of any size, by one
// state machine that holds one field of at most 64 KiB at a time; values that are not kept are
// dropped at once. Work and memory are limited by the bytes received: at most MaxHeader, and never
// by a count or a length in the file. Of all texts together at most 64 KiB are kept; of tensors
// only sums are.
//
// The following is ignored: keys with a value of another type than in the specification, texts that
// are not UTF-8, unknown keys, and the second of two equal keys. If the number of elements
// overflows, the number of parameters is unknown. Everything else that is wrong – a type of value
// that does not exist, a shape with five dimensions, an offset that is not aligned, data beyond the
// end of the file or more of it than the file has – makes the whole header invalid, so that a
// partly wrong header is not used. A caller then continues without a header: invalid metadata never
// makes the files unavailable.
//
// A chat template is a program and is not kept.
//
// The format: https://github.com/ggml-org/ggml/blob/v0.9.4/docs/gguf.md
package gguf

// Package safetensors reads and writes the header of safetensors files.
//
//	8 bytes: size of the header ─▶ header: JSON, name → dtype, shape, data_offsets ─▶ data
//
// Read reads it from the start of a file. A Sniffer receives the bytes of a file during a transfer; its
// writes never fail, and cost nothing after the header. Describe turns summaries of headers into a
// ModelPack config.
//
// Merge combines several files into one without reading their data: it returns the header of the
// merged file, and the ranges of the inputs that follow it, in order. So the header is final before
// any data is read.
//
// # Trust
//
// The input is not trusted. A header is accepted only if the reference implementation accepts it:
// UTF-8, JSON without duplicate keys, offsets that are whole numbers and cover the data from the
// first byte to the last without overlaps, and sizes that match dtype and shape. An unknown dtype
// is kept when read, without checking its size; it is never written. In addition to those of the
// reference, there are limits: a rank of 64, a million tensors, and a name of 64 KiB. Memory is
// limited by the bytes received, never by a size in the file.
//
// For metadata, an invalid header counts as missing, and never makes the files unavailable. For
// Merge it is an error: bytes would be put in the wrong place.
//
// The format: https://github.com/huggingface/safetensors/blob/v0.5.3/README.md#format
package safetensors

// Package safetensors reads and writes the header of safetensors files.
//
//	8 bytes: size of the header ─▶ header: JSON, name → dtype, shape, data_offsets ─▶ data
//
// Read reads it from an io.Reader. A Sniffer is given the bytes of a file while they pass by on
// their way to somewhere else; it fails no write, and costs nothing once the header is over.
// Describe turns what Summary keeps of headers into a ModelPack config.
//
// Merge makes one file of several, without a byte of their data: it gives the header of that file,
// and says which range of which input comes where after it. So the header is final before any
// data is read.
//
// # What is trusted
//
// Nothing. A header is accepted only if the reference accepts it: UTF-8, JSON without a
// key twice, offsets that are whole numbers and cover the data from the first byte to the last, each
// once, and the size that dtype and shape say. A dtype that is not known is read as it is, and
// its size is not checked; it is never written. Beyond the reference there are limits: a rank of 64, a million tensors,
// and a name of 64 KiB. Memory is bounded by the bytes that really came, never by the
// size that the file claims.
//
// For metadata, a header that is wrong is no header, and never a reason for not having the
// files. For Merge it is an error: bytes would be put in the wrong place.
//
// The format: https://github.com/huggingface/safetensors/blob/v0.5.3/README.md#format
package safetensors

package gguf

const (
	// MaxHeader limits the header, in bytes. The largest known headers have some ten MiB, nearly
	// all of it the vocabulary of the tokenizer.
	MaxHeader = 64 << 20 // 64 MiB

	maxKeys    = 1 << 16 // metadata entries; models have about fifty
	maxTensors = 1_000_000
	maxKey     = 1<<16 - 1 // bytes in a key; the limit of the specification
	maxText    = 64 << 10  // bytes in all texts kept together
	maxList    = 256       // kept texts of one list
	maxNesting = 4         // arrays in arrays
	maxRank    = 4         // dimensions of a tensor; the limit of ggml
	maxArch    = 64        // kept keys that belong to an architecture
	maxArchKey = 256       // bytes in such a key

	// defaultAlignment is used if the file has none, in bytes.
	defaultAlignment = 32
	maxAlignment     = 1 << 16
)

// A Header has the facts from the header of a file. A missing text is empty, a missing number is
// zero.
type Header struct {
	Version   int // 1, 2 or 3
	Alignment int64

	Type         string // "model", "adapter", "mmproj" or "vocab"; often missing
	Architecture string // such as "llama"
	Name         string
	Revision     string // the version of the model
	SizeLabel    string // such as "8x7B"
	Author       string
	Organization string
	License      string // as written; not always an SPDX expression
	Description  string
	URL          string
	RepoURL      string
	SourceRepo   string
	Languages    []string
	Datasets     []string

	// FileType is the name of the type of most tensors, such as "Q4_K_M"; empty if the file has
	// none or a number without a name.
	FileType string

	ContextLength uint64 // in tokens

	SplitNo    uint64 // index of this file among SplitCount, from zero
	SplitCount uint64 // number of files the model is split into; zero if it is not

	Tensors int64 // number of tensors in this file

	// Types are the bytes of the tensors by type, such as "Q4_K"; zero for "", which stands for all
	// types without a name here.
	Types map[string]uint64

	// Parameters is the number of elements in all tensors of this file, zero if unknown.
	Parameters uint64

	DataOffset int64 // start of the data, in bytes from the start of the file
	DataSize   int64 // end of the last tensor in bytes from DataOffset, without unknown types
}

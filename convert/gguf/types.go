package gguf

// Types of metadata values.
const (
	valueU8 = iota
	valueI8
	valueU16
	valueI16
	valueU32
	valueI32
	valueF32
	valueBool
	valueString
	valueArray
	valueU64
	valueI64
	valueF64
)

// valueSizes are the sizes of values in bytes, zero for those of variable size.
var valueSizes = [...]uint64{
	valueU8: 1, valueI8: 1, valueU16: 2, valueI16: 2, valueU32: 4, valueI32: 4, valueF32: 4, valueBool: 1,
	valueString: 0, valueArray: 0, valueU64: 8, valueI64: 8, valueF64: 8,
}

// A tensorType describes the storage of elements: in blocks of a number of elements and bytes.
type tensorType struct {
	name  string
	block uint64 // elements
	size  uint64 // bytes
}

// tensorTypes by number. Missing numbers were removed, or are newer. Those from 40 were added after
// the version in the link.
// https://github.com/ggml-org/ggml/blob/v0.9.4/include/ggml.h
var tensorTypes = map[uint32]tensorType{
	0:  {"F32", 1, 4},
	1:  {"F16", 1, 2},
	2:  {"Q4_0", 32, 2 + 16},
	3:  {"Q4_1", 32, 4 + 16},
	6:  {"Q5_0", 32, 2 + 4 + 16},
	7:  {"Q5_1", 32, 4 + 4 + 16},
	8:  {"Q8_0", 32, 2 + 32},
	9:  {"Q8_1", 32, 4 + 32},
	10: {"Q2_K", 256, 84},
	11: {"Q3_K", 256, 110},
	12: {"Q4_K", 256, 144},
	13: {"Q5_K", 256, 176},
	14: {"Q6_K", 256, 210},
	15: {"Q8_K", 256, 292},
	16: {"IQ2_XXS", 256, 66},
	17: {"IQ2_XS", 256, 74},
	18: {"IQ3_XXS", 256, 98},
	19: {"IQ1_S", 256, 50},
	20: {"IQ4_NL", 32, 18},
	21: {"IQ3_S", 256, 110},
	22: {"IQ2_S", 256, 82},
	23: {"IQ4_XS", 256, 136},
	24: {"I8", 1, 1},
	25: {"I16", 1, 2},
	26: {"I32", 1, 4},
	27: {"I64", 1, 8},
	28: {"F64", 1, 8},
	29: {"IQ1_M", 256, 56},
	30: {"BF16", 1, 2},
	34: {"TQ1_0", 256, 54},
	35: {"TQ2_0", 256, 66},
	39: {"MXFP4", 32, 1 + 16},
	40: {"NVFP4", 64, 4 + 32},
	41: {"Q1_0", 128, 2 + 16},
}

// fileTypes are the names of general.file_type. 1024 means that the number was guessed. Those from
// 38 were added after the version in the link.
// https://github.com/ggml-org/ggml/blob/v0.9.4/docs/gguf.md
var fileTypes = map[uint64]string{
	0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
	11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S",
	17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
	23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M",
	30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE",
	39: "NVFP4", 40: "Q1_0",
}

// precisions are ModelPack's names of types that are not quantised.
// https://github.com/modelpack/model-spec/blob/v0.0.7/docs/config.md
var precisions = map[string]string{
	"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
	"I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
}

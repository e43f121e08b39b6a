package convert

import (
	"encoding/json"
	"math/bits"
	"strconv"
)

// ParamCount converts a number of parameters to the form of ModelPack, such as "1.2B". It returns
// "" for fewer than a thousand, for which there is no unit.
func ParamCount(n uint64) string { return countParams(strconv.FormatUint(n, 10)) }

// Elements returns the number of elements of a tensor, and false if it overflows.
func Elements(shape []uint64) (n uint64, ok bool) {
	n = 1
	for _, dim := range shape {
		var over uint64
		if over, n = bits.Mul64(n, dim); over != 0 {
			return 0, false
		}
	}
	return n, true
}

// MergeConfig returns origin with its empty fields set from header, the metadata in the headers of
// files. ModelFS is that of origin. It relies on the JSON form of a Config, which leaves out empty
// fields: members of origin replace those of header.
func MergeConfig(origin, header Config) Config {
	var merged Config
	for _, c := range []Config{header, origin} {
		p, err := json.Marshal(c)
		if err == nil {
			err = json.Unmarshal(p, &merged)
		}
		if err != nil {
			panic("convert: internal error: " + err.Error()) // a Config can be encoded and decoded
		}
	}
	return merged
}

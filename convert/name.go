package convert

import "fmt"

// WeightsName returns the name of file i of the weights of a model, counted from 1: model.ext for
// the only one, otherwise model-00001-of-00002.ext and so on.
func WeightsName(i, of int, ext string) string {
	if of == 1 {
		return "model." + ext
	}
	return fmt.Sprintf("model-%05d-of-%05d.%s", i, of, ext)
}

// NumberedName returns name.ext for i = 1, name-2.ext for 2, and so on. ext can be empty.
func NumberedName(name string, i int, ext string) string {
	if i == 1 {
		return name + ext
	}
	return fmt.Sprintf("%s-%d%s", name, i, ext)
}

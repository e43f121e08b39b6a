package transfer

import "slices"

// Names returns the names of sources, sorted and without duplicates.
func Names(sources []Source) (names []string) {
	for _, src := range sources {
		names = append(names, src.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Package losses says what of an origin has no place in a converted image, and where it is kept
// instead.
//
// The documents of an origin are kept whole (convert.Documents), so nothing that they say is
// gone: a Loss is what nobody finds who reads the ModelPack config, the files and the annotations
// only. A Loss without Kept is gone. What a format has a place for is in one table per format
// (table.go); whatever else the documents have is a Loss, known or not.
package losses

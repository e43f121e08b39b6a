// Package losses reports what of an origin has no place in a converted image, and where it is kept instead.
//
// The documents of an origin are kept as a whole (convert.Documents). A Loss is information that is in
// neither the ModelPack config, the files nor the annotations; if Kept is empty, it is lost. table.go lists
// for each format what has a place. Everything else in the documents is a Loss, known or not.
package losses

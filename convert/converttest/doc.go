// Package converttest makes small, complete model artifacts of every format, with the files that a
// reader must see. Tests of parsers use it in memory, journeys push what it
// makes to a real registry.
//
// A Built has the manifest, every blob, and the expected files. All formats are made from one
// list of files, so that the same weights come in many wrappings:
//
//	for _, b := range converttest.All(converttest.Files(weights)) {
//		model, err := parsers.Parse(ctx, converttest.NewArtifact(b))
//		…
//	}
//
// What is made depends on the arguments only.
package converttest

// Package resolve says what a name stands for, and what is made of it: the one way for the facade, for
// prefetches and imports, and for the command line. It has neither an HTTP server nor a store.
//
//	name ── Open, Read ──▶ Origin ── Model ──▶ convert.Model ── image.Build ──▶ image
//	                         │ Key                                               ▲
//	                         └──────── of an image that was converted before ────┘
//
// # Names
//
//	ghcr.io/team/model:v1      a reference; ParseRef
//	hf:ORG/REPO[@REVISION]     a reference too, hf.co/ORG/REPO:REVISION
//	oci:DIR[:TAG]              an OCI layout, or its directory alone
//	./DIR, ./FILE              a directory of model files (also a snapshot of a hub's cache), or a file
//	./FILE.carton              a carton, or the directory that one was unpacked to
//	[carton+]https://…         a carton at a URL
//	ollama:[DIR:]MODEL         a model of a local Ollama
//
// Resolver.Cartons maps the references of a host to URLs of cartons. A tag that is not there and has the
// name of an Ollama runner at its end stands for the model of that runner in the list that the tag without
// it names.
//
// # What is read
//
// A manifest is read once and parsed once; it goes with the Origin. Key tells what the image will be made
// from before anything else is read, so who has it already reads nothing more. An image that was converted
// ahead of time is not converted again: its table, its config and its manifest are what they are.
//
// # Indexes
//
// Index asks what each entry is, at most once, and puts the images of those that are models in their places.
// Entries that were converted ahead of time stay, also if their descriptors say that they are models: that is
// how an index of ours looks in another registry.
//
// # Errors
//
// An error of looking at an artifact is an *ArtifactError; if the artifact is not as it must be,
// errors.Is(err, ErrInvalidModel) holds, which is told from a registry or a network in trouble.
package resolve

// Package resolve finds the model of a name and what it is converted to: in the same way for the
// facade, for prefetches and imports, and for the command line. It has neither an HTTP server nor a
// store.
//
//	name ── Open, Read ──▶ Origin ── Model ──▶ convert.Model ── image.Build ──▶ image
//	                         │ Key                                               ▲
//	                         └──────── of an image that was converted before ────┘
//
// # Names
//
//	ghcr.io/team/model:v1      a reference; ParseRef
//	hf:ORG/REPO[@REVISION]     also a reference, hf.co/ORG/REPO:REVISION
//	https://huggingface.co/…   the page of a model on the web: its reference
//	oci:DIR[:TAG]              an OCI layout, or its directory alone
//	./DIR, ./FILE              a directory of model files (or a snapshot of a hub's cache), or a file
//	./FILE.carton              a carton, or the directory with its unpacked files
//	[carton+]https://…         a carton at a URL
//	ollama:[DIR:]MODEL         a model in a local Ollama store
//
// The formats of package formats define the syntax of their names; a name that none of them takes
// is a reference. Resolver.Archives maps the references of a host to URLs of archives. A missing
// tag that ends in the name of a variant stands for that variant of the model with the rest of the
// tag.
//
// # Places
//
// Resolver.Prefix gives the models of a repository a directory in mounts. It is part of the Key and of the image
// (filetable.Origin.Prefix), and not of the paths in the file table, which signatures cover. Images that were converted
// ahead of time keep theirs.
//
// # Reading
//
// A manifest is read once and parsed once; it is part of the Origin. Key returns what the image
// will be made from before anything else is read, so a caller that already has the image reads
// nothing more. Of an image that was converted ahead of time only the table and the metadata count: it is
// built again from them, with the same bytes unless somebody has changed them (Preconverted). An image made from
// such an image, with further layers, stays as it is.
//
// # Indexes
//
// Index determines what each entry is, at most once, and replaces models by their images. Entries that were converted
// ahead of time stay if their images have the same bytes, even if their descriptors have the type of a model: an
// index of ours in another registry has such entries. Entries returns which entry containerd takes.
//
// # Errors
//
// An error in an artifact is an *format.ArtifactError, in contrast to an error of a registry or of
// the network; if the artifact is invalid, errdefs.IsInvalidArgument holds. An invalid name is a
// *format.NameError.
package resolve

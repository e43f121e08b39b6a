// Package huggingface lets the Hub of Hugging Face be read like a registry: a repository at a commit is a
// ModelPack artifact with a raw layer for each file.
//
//	GET /v2/ORG/REPO/manifests/TAG       the commit and the tree of TAG ──▶ a manifest, made here
//	GET /v2/ORG/REPO/blobs/DIGEST        ──▶ /ORG/REPO/resolve/COMMIT/PATH of the file with the digest
//
// A Hub is a remote.Dialect, so all that reads registries reads it: the facade, prefetch, convert, digest
// and inspect, with their rules for credentials, redirects and addresses. Nothing can be pushed.
//
// # Tags
//
//	main, a branch, a tag or a commit   all files of that revision
//	Q4_K_M                              of main, the GGUF files of that quantisation, projectors, and what are
//	                                    no weights; as Ollama and llama.cpp name it
//	latest                              main; of a repository with several quantisations the one that
//	                                    llama.cpp takes: Q4_K_M, else the first
//
// A revision goes before a quantisation. Files of git itself (.gitattributes) are left out.
//
// # What the manifest has
//
// It follows from the commit and the files that are taken, and not from the name of the repository or the time.
// The digest and the size of a large file are those that LFS gives. A small file is read, compared with
// what git calls it, and hashed; how much of that there can be is bounded. The commit is the revision in the
// config and an annotation, so the manifest says where each file is: the Hub is reminded of one that was made
// before (Remind), and finds its files after a restart, also when the branch has moved on.
//
// # Who may read
//
// A token comes as the password of a request, and goes to the Hub as it is, never to where that redirects. Each
// manifest is asked for with it, also one that is known, so nobody learns more than the Hub tells him. A
// repository that is gated is refused with what to do about it.
//
// The Hub's own documentation: https://huggingface.co/docs/hub/api
package huggingface

// Package huggingface reads the Hub of Hugging Face like a registry: a repository at a commit is a
// ModelPack artifact with a raw layer for each file.
//
//	GET /v2/ORG/REPO/manifests/TAG       the commit and the tree of TAG ──▶ a manifest, made here
//	GET /v2/ORG/REPO/blobs/DIGEST        ──▶ /ORG/REPO/resolve/COMMIT/PATH of the file with the digest
//
// A Hub is a remote.Dialect, so every reader of registries reads it: the facade, prefetch, convert,
// digest and inspect, with their rules for credentials, redirects and addresses. Pushes are not
// supported.
//
// # Tags
//
//	main, a branch, a tag or a commit   all files of that revision
//	Q4_K_M                              of main, the GGUF files of that quantisation, projectors, and files that
//	                                    are not weights; as Ollama and llama.cpp name it
//	latest                              main; of a repository with several quantisations the one that
//	                                    llama.cpp uses: Q4_K_M, otherwise the first
//
// A revision has precedence over a quantisation. Files of git itself (.gitattributes) are left out.
//
// # The manifest
//
// It depends on the commit and the chosen files, and not on the name of the repository or the time.
// The digest and the size of a large file are those in LFS. A small file is read, compared with its
// git object ID, and hashed; the amount of such files is limited. The commit is the revision in the
// config and an annotation, so the manifest leads to each file: a Hub can be given an earlier
// manifest (Remind), and finds its files after a restart, even when the branch has moved on.
//
// # Access
//
// A token is the password of a request, and is sent unchanged to the Hub, but never to the target
// of a redirect. For each manifest, even a known one, a byte of the largest file is requested with it:
// the Hub lists the files of a gated repository to everybody, so a listing is no permission. The error
// for a gated repository contains advice.
//
// The Hub's own documentation: https://huggingface.co/docs/hub/api
package huggingface

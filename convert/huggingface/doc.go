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
//	Q4_K_M                              of main, the models in GGUF of that quantisation with all their shards,
//	                                    projectors (mmproj), and files beside them
//	latest                              main; of a repository with several quantisations the one that llama.cpp
//	                                    uses: Q4_K_M, otherwise Q8_0, otherwise that of the first model
//
// A revision has precedence over a quantisation. Files of git itself (.gitattributes) are left out.
//
// A file has the quantisation that its name contains between characters that are neither letters nor digits, in upper
// or lower case; the last one, if there are several. Otherwise it has that of its directory:
//
//	m-Q4_K_M.gguf   m (iq2_xxs).gguf   m-NVFP4.gguf   UD-Q4_K_XL/m-00001-of-00002.gguf
//
// UD-Q4_K_M is used if there is no Q4_K_M. Not all files in GGUF are models: projectors, data for quantising (imatrix)
// and drafts of a model (mtp-, eagle3-, dflash-, dspark-) are not. Files beside a model are small (in git itself, or
// at most 64 MiB), are neither weights nor archives, and have no other quantisation. A quantisation of which there are
// only pieces (m.Q6_K.gguf-split-a) is an error that names one: nothing reads them before they are one file again.
//
// llama.cpp: https://github.com/ggml-org/llama.cpp/blob/b11039/common/download.cpp
//
// # The manifest
//
// It depends on the commit and the chosen files, and not on the name of the repository or the time.
// The digest and the size of a large file are those in LFS. A small file is read, compared with its
// git object ID, and hashed; the amount of such files is limited. The digests are kept (digests), so the next resolve
// continues where one was refused. The commit is the revision in the
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
// # Limits of the Hub
//
// The Hub limits requests, for each account, and for each address without a token, in windows of five minutes. A
// refusal says for how long (pause), and remote.WithPatience waits for that. A token is used when the limit of those
// without one is reached.
//
// # Mirrors
//
// HF_ENDPOINT can name a mirror of the Hub, also with a path. The next page of a tree is requested there, although
// many mirrors repeat the address of the Hub. The token follows a redirect within the mirror, but none to another
// host. Such a redirect does not lead from https to http, and into a private network only in the domain of the mirror
// or if upstream.allow_hosts has the host. It is a permission to read only if the response names the commit; otherwise
// the target decides.
//
// The Hub's own documentation: https://huggingface.co/docs/hub/api
package huggingface

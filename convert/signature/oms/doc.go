// Package oms verifies and makes signatures of OpenSSF Model Signing v1.0: a statement with the digest of each
// file of a model.
//
// A file table has the same digests, so a model is verified without reading its files, if the statement
// lists files by sha256. A statement with shards or another hash is refused, because their digests are not
// known; signers can choose.
//
// The files of the model and of the statement must be the same: none unsigned, none missing. Ignored are
// the paths that the signer ignored (ignore_paths, which is signed), those that the specification always
// ignores (.git, .gitattributes, .github, .gitignore), and the signature itself, model.sig. A statement
// about a single file can name it ".".
//
// https://github.com/ossf/model-signing-spec/blob/v1.0/docs/specs.md
// https://github.com/sigstore/model-transparency/blob/v1.1.1/src/model_signing/_signing/signing.py
package oms

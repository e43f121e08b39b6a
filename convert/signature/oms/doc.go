// Package oms verifies and makes signatures of OpenSSF Model Signing v1.0: a statement with the digest of each
// file of a model.
//
// A file table has the same digests, so a model is verified without reading its files, if the statement
// lists files by sha256. A statement with shards or another hash is refused, because their digests are not
// known; signers can choose.
//
// The files of the model and of the statement must be the same: none unsigned, none missing, but for the
// signature itself, model.sig. Other clients ignore the paths that the signer ignored (ignore_paths, which
// is signed), and those that the specification always ignores (.git, .gitattributes, .github, .gitignore):
// whoever can change a model can put anything there, such as a configuration of git that runs programs. So
// a model that has them is refused, and not signed. A statement about a single file can name it ".".
//
// https://github.com/ossf/model-signing-spec/blob/v1.0/docs/specs.md
// https://github.com/sigstore/model-transparency/blob/v1.1.1/src/model_signing/_signing/signing.py
package oms

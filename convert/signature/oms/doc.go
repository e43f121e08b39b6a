// Package oms verifies and makes signatures of OpenSSF Model Signing v1.0: a statement that lists the
// digest of each file of a model.
//
// A file table has the same digests, so a model is verified without reading a byte of it, if the
// statement lists files by sha256. One that lists shards, or uses another hash, is refused: none of its
// digests are known here, and a signer can choose.
//
// The files of the model and those of the statement have to be the same: no file that is not signed, none
// that is missing. What is left out is what the signer left out (ignore_paths, which is signed), what
// the specification always leaves out (.git, .gitattributes, .github, .gitignore), and the signature itself,
// model.sig. A statement about one file can call it ".".
//
// https://github.com/ossf/model-signing-spec/blob/v1.0/docs/specs.md
// https://github.com/sigstore/model-transparency/blob/v1.1.1/src/model_signing/_signing/signing.py
package oms

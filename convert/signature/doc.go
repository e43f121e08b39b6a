// Package signature decides whether a model may be used, by its signatures and its content.
//
//	Rule (signers, licences, code or not) ─────────────────┐
//	Subject (names, manifests, file table, repositories) ──┴▶ Checker.Check ─▶ Result
//	                                                             │
//	                   oms · cosign ◀── bundles, payloads ┘ ──▶ keyless (another process)
//
// The first rule that matches a name applies. One signature by one of its signers is enough.
//
// # What a signature covers
//
//	oms     the files of the model: compared with the file table, for any manifest
//	cosign  the digest of the origin manifest, or of an image converted before it was pushed
//
// A signature of the origin also covers the image converted from it here, because all bytes that conversion depends
// on are compared with digests in the origin, before the model is shown. An archive that is a layer (a carton) is read
// in parts and is not: a signature of its origin does not count (Subject.FilesOnly), one of the converted image, whose
// table has the digests of the files, does. A signature of the origin does not cover a table that only claims that
// origin either: an image converted elsewhere needs its own signature.
//
// A signature of a manifest covers the digests of chunks in the file table, oms does not: whoever serves
// a table can put other chunks below a signed file. Such a model is pending until it is complete and its
// files have been compared, and so is one with names from the headers of uncompressed tars.
// Signatures of manifests are looked for first.
//
// # Where signatures are found
//
// In the referrers of the manifest (a bundle), under the fallback tag of registries
// without the referrers API, under cosign's older tag (sha256-<hex>.sig), and in model.sig, a file of the
// model.
//
// # When checks run
//
// A Check can run before any byte of the model is present. If its files are known only later (archives), the result
// is pending, and the check must be repeated with Subject.Complete before the model is shown. A result is stored
// under the digest of the table, with an id of the rule that changes with its keys and, if it names licences, with
// the config of the image. It is used again, also without a network. Refusals are not stored, since a signature may
// be added.
//
// # Limits
//
// All input is untrusted. A Check reads at most 32 signatures of a manifest, in bundles of at most 8 MiB, 32 MiB in
// total, within a minute. Bundles without a trusted signer are dropped at once; if a rule has keyless signers, those
// with a certificate are verified by another process first, once by each trusted root. At most six Checks run at a
// time, two for one host, half of them for hosts that have none, and one for hosts that answered the last time. While
// a host that has none waits, a check of a host that did not answer the last time ends after ten seconds. Memory is
// not allocated by the sizes in descriptors.
package signature

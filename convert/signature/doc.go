// Package signature decides whether a model may be used, by who signed it and what is in it.
//
//	Rule (whose signatures, which licences, code or none) ─┐
//	Subject (names, manifests, file table, repositories) ──┴▶ Checker.Check ─▶ Result
//	                                                             │
//	    oms · cosign · notation ◀── bundles, payloads, envelopes ┘
//
// The first rule that matches a name counts. One signature that one of its signers made is enough.
//
// # What a signature is over
//
//	oms       the files of the model: compared with the file table, whatever manifest has it
//	cosign    the digest of the origin manifest, or of the image that was converted ahead
//	notation  the same
//
// So a signature of the origin holds for what is made of it here, because that follows from the origin
// alone. It says nothing of a table that a stranger says comes from there: an image that was converted ahead
// needs its own.
//
// # Where signatures are
//
// In the list of referrers of the manifest (a bundle, a signature of notation), under the tags that stand
// in for it, in a layer of cosign before that (sha256-<hex>.sig), and in model.sig, a file of the model.
//
// # When
//
// A Check can come before any byte of the model is there. If the files are known only then (archives), it is
// pending, and has to be asked again with Subject.Complete before the model is shown. What was accepted
// is kept in the store under the digest of the table, by a name of the rule that changes with its keys: it is
// not asked again, and holds without a network. What was refused is not kept: somebody may sign it.
//
// # Costs
//
// All of it is what strangers wrote. For a Check at most 32 signatures of a manifest are read, in bundles of
// at most 8 MiB, 32 MiB together, within a minute; one that nobody trusted signed is forgotten at once. Four
// Checks look at a time, two of one host, so that a registry that hangs leaves room for others. Nothing is allocated on the word of a
// descriptor.
package signature

// Package keyless asks another program, ballast-keyless, who made a keyless signature, and to make one.
//
//	Program.Verify ── trusted root, bundle ──▶ ballast-keyless
//	               ◀── Answer: digest of the signed bytes, issuer, subject; or the problem
//	Program.Sign   ── signing config, token, statements ──▶ ballast-keyless sign ──▶ Fulcio, Rekor, timestamps
//	               ◀── SignAnswer: bundles, issuer, subject; or the problem
//
// The certificate of a keyless signature is valid for minutes. That it was valid when the signature was made is
// proved by the log and the timestamps in the bundle, and a trusted root names whose. The library for them links some
// 370 packages of others (82 modules), which are not for a daemon that runs as root and faces tenants.
//
// # What the program can do
//
// It is a process for one bundle. If the caller is root, it runs as a user that nothing else runs as, without groups
// and capabilities. It cannot gain any, opens nothing, neither file nor socket, and its memory and time are limited.
// Pipes and an empty environment are all that it has. Without root, it runs as the caller.
//
// # What it decides
//
// Whether the chain ends at the trusted root, the log and the timestamps are as they must be, and the signature is
// valid at that time. It neither knows which signer is trusted nor what is signed: dsse.Identity compares issuer and
// subject, and that the bytes it was asked about are those that are judged. The packages oms and cosign judge them.
//
// # Signing
//
// Program.Sign is for publishers, and ballastd does not call it. The process runs as the caller and reaches the
// network, with an environment of proxy and certificates alone. It can neither gain privileges nor write files. The key
// is made for one run and is never outside of it. A token comes by the standard input, and is removed from every text
// that leaves.
package keyless

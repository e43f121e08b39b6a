// Package pullsecret keeps the credentials that callers gave for repositories, so that the rest of what
// they pulled can be fetched for them later.
//
// A secret is for the name ("host/repository") that it was given for. The names that snapshots need
// (Need) keep theirs for as long. All others are forgotten an hour after they were used last, or when
// there are too many: then of the site (registrable domain) that has the most of them, the one that was
// used the longest ago. So a stranger with a registry of his own pushes out his own secrets and nobody
// else's.
//
//	given ──needed──▶ held ──not needed──▶ given ──an hour, or too many──▶ forgotten
//
// # On disk
//
//	<dir>/key           32 random bytes, mode 0600
//	<dir>/<64 hex>      the secrets of a name, sealed; the name of the file is the digest of the name
//
// On the disk are the secrets of those names alone that Need says; the files of others are removed. A file
// is a random nonce and AES-256-GCM of JSON, bound to the name: one that was renamed, or is of another
// key, does not open and is removed. The key is beside what it seals: that keeps secrets out of what is
// copied, searched or sent away file by file, not from who has the whole directory, such as root or a
// backup of it all.
package pullsecret

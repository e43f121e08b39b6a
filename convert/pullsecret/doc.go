// Package pullsecret keeps the credentials that callers gave for repositories, to fetch the rest of their
// models later.
//
// A secret is used only for the name ("host/repository") that it was given for. Secrets of names needed by
// snapshots (Need) are kept as long as they are needed. Others are dropped one hour after their last use,
// or when there are too many: then the least recently used name of the site (registrable domain) with the
// most names is dropped. A hostile registry can therefore displace only its own secrets. Of one name
// there are at most 8, and the oldest of the user name with the most is dropped: a caller with many tokens
// displaces those of others only if he has them under as many user names.
//
//	given ──needed──▶ held ──not needed──▶ given ──one hour, or too many──▶ dropped
//
// # Files
//
//	<dir>/key           32 random bytes, mode 0600
//	<dir>/<64 hex>      the sealed secrets of a name; the file name is the digest of the name
//
// Only secrets of names for which the function given to Need returns true are on disk; other files are
// removed. A file is a random nonce and AES-256-GCM of JSON, bound to the name: a renamed file, or one with
// another key, cannot be opened and is removed. The key is stored beside the files. This protects secrets
// in files that are copied or searched individually, not against a reader of the whole directory, such as
// root or a full backup.
package pullsecret

// Package verify is the one door of the store: digests are compared here and nowhere else, and
// a byte leaves the store only after Compare has found it right.
package verify

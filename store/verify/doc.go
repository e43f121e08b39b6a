// Package verify is the only place where digests are compared: a byte leaves the store only after Compare has
// succeeded.
package verify

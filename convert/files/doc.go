// Package files makes models from a directory of model files, or from one file, without any
// packaging, including a snapshot in the cache of a model hub, where file names are digests.
package files

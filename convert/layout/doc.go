// Package layout reads and writes models in OCI layouts, which are directories, and extracts those in tar files.
// https://github.com/opencontainers/image-spec/blob/v1.1.1/image-layout.md
package layout

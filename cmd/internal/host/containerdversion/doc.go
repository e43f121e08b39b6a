// Package containerdversion has the versions of containerd that ballast supports: how they are
// written, and what their configuration files may contain.
package containerdversion

// Package containerdversion knows the versions of containerd that ballast works with: how one is written, and what a
// configuration file for it may say.
package containerdversion

//go:build tools

// Package build names the kubelet for the Go module that pins its version.
package build

import _ "k8s.io/kubernetes/cmd/kubelet"

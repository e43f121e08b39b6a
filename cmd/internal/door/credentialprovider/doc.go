// Package credentialprovider asks credential provider plugins of the kubelet, such as those of ECR, Artifact Registry
// and ACR, for credentials of the node.
//
// A plugin is a program in a directory. It gets a CredentialProviderRequest on its standard input and writes a
// CredentialProviderResponse to its standard output, both JSON. The file that lists the plugins is that of the kubelet,
// YAML or JSON, and is read for each look-up.
//
// What a plugin writes is not trusted: it has a limit and must come in time, and credentials are used only for the
// repositories of the patterns that they come with (hostname.Entries). Plugins that want the token of a service account
// are left out, because there is no pod.
//
// https://github.com/kubernetes/kubelet/blob/v0.34.0/pkg/apis/credentialprovider/v1/types.go
// https://github.com/kubernetes/kubelet/blob/v0.34.0/config/v1/types.go
package credentialprovider

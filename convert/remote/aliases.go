package remote

import "github.com/ballast-dev/ballast/convert/hostname"

// NormalHost returns the host of a Ref for a host as users and containerd write it (hostname.Normal).
func NormalHost(host string) string { return hostname.Normal(host) }

// NormalAddress returns the normal form of a host of a URL with a scheme (hostname.Address).
func NormalAddress(host, scheme string) string { return hostname.Address(host, scheme) }

// SplitHost returns the name and the port of a host (hostname.Split).
func SplitHost(host string) (name, port string) { return hostname.Split(host) }

// Package doctor checks why a node does not show models, and returns the command that fixes each
// problem.
//
// A Doctor checks six things: the daemon (whether it runs, its version, where it stores its
// bytes), the kernel (whether it can show models without copies, and to user namespaces),
// containerd (its configuration with all imports, as containerd itself reads it, and its loaded
// plugins), and the hosts.toml files (whether every way to a model's tag leads through the facade,
// whether another program has replaced one, also to what rules require signatures of, and whether the
// facade answers with these keys), and the closed registries: ballastd itself asks each of them once, since it has the
// proxies, certificates and network of later requests, without credentials; and Docker Engine, where it has ballast.
// A registry that does not answer is a
// warning: the node may be without a network on purpose, or the registry down, and models that are here work. One
// that answers with a certificate that nobody here trusts is a failure: no pull from it can succeed until that is
// changed. Each check returns Findings.
//
// The findings follow the rules of containerd: an image volume, and a pull of CRI in local mode, is
// unpacked by the diff-service, any other pull by unpack_config; after a mirror in hosts.toml that
// fails, the next host is used, so that a stopped facade lets an unconverted manifest in unless no
// other host may resolve. The rules differ with the version of containerd (package
// containerdversion), and so do the findings; its files are read by the newest version's code.
package doctor

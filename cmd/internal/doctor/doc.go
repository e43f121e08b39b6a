// Package doctor finds out why a node would not show models, and says the line that mends it.
//
// A Doctor looks at four things: the daemon (does it run, what is it, where does it keep its
// bytes), the kernel (can it show models without copies, and to user namespaces), containerd (its configuration with
// all imports, as containerd itself reads it, and the plugins it has loaded), and the hosts.toml
// files (does every way to a model's tag lead through the facade, and does that answer who asks so).
// Each look gives Findings.
//
// The rules that the findings follow are containerd's: an image volume, and a pull of CRI in local mode, is
// unpacked by the diff-service, any other pull by unpack_config; a mirror in hosts.toml that fails is followed by the next host, so that
// a stopped facade lets an unconverted manifest in unless no other host may resolve. They differ with the version of
// containerd (package containerdversion), and so do the findings; its files are read by the newest version's code.
package doctor

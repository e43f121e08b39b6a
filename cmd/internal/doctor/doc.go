// Package doctor finds out why a node would not show models, and says the line that mends it.
//
// A Doctor looks at four things: the daemon (does it run, what is it, where does it keep its
// bytes), the kernel (can it show models without copies), containerd (its configuration with
// all imports, as containerd itself reads it, and the plugins it has loaded), and the hosts.toml
// files (does every way to a model's tag lead through the facade, and does that answer who asks so).
// Each look gives Findings.
//
// The rules that the findings follow are containerd's: an image volume is unpacked by the
// diff-service, a pull by unpack_config; disable_snapshot_annotations = false makes CRI leave
// unpack_config aside; a mirror in hosts.toml that fails is followed by the next host, so that
// a stopped facade lets an unconverted manifest in unless no other host may resolve.
package doctor

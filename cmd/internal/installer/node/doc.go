// Package node is the one view of the machine that ballast runs on: its file system, its
// distribution, the containerd on it with its effective configuration and its state, and the other
// programs that change containerd's configuration.
//
// Setup plans on this view and proves its work with it, doctor reports from it, and the daemon asks
// its containerd through it. The package changes nothing.
//
// # Configuration of containerd
//
// Load returns what containerd reads, by containerd's own code: the main file, all files that it
// imports, and each format migrated as containerd does it. The files can be those on the disk, or
// those that a plan would leave there (Changes): a configuration is checked before it is written, by
// the same checks as after.
//
//	main file ─ imports ─▶ drop-ins ─▶ merged ─▶ Containerd ─▶ Check ─▶ Findings
//	     ▲                    ▲
//	     └──── Changes of a plan
//
// Containerd.From names the file that a setting comes from. Diff compares two configurations, and
// so tells whether a plan changes more than what belongs to ballast.
//
// Check also names the neighbours: other snapshotters, programs that write hosts.toml files, and runtimes
// for GPUs. They are recognized by what their installers write, which only their own tables know.
//
// # State of containerd
//
// Ask returns what a running containerd says of itself: its version, its plugins with the errors of
// those that did not start, and the conditions of CRI. State.Worse compares two of them: what was
// well before a change and is not after it.
package node
